#!/bin/sh
# All training comparisons of docs/hopfield.md, one after another: hours of one core. The page lists what has not been
# run yet, under "What the plan asks for and has not been run".
# A run that was killed goes on from its last checkpoint: start this again. Seeds are added one by one, so that the
# result in OUT is complete for the seeds there are at any time.
#
#   BOOKS=books IMAGES=fashion-mnist OUT=runs/hopfield sh docs/results/hopfield/plan.sh
#
# Runs whose logs are in LOGS (by default beside this file, NAME/logs) are not trained again, and logs of new ones are
# added there; their weights are only in OUT.
#
# BOOKS: what scripts/make_austen.py writes. IMAGES: the four files of Debian's dataset-fashion-mnist.
set -e
: "${BOOKS:?a folder of text files, see scripts/make_austen.py}" "${IMAGES:?a folder with the files of Fashion-MNIST}"
OUT=${OUT:-runs/hopfield}
export OMP_NUM_THREADS=1
TRAIN="${HEADSCAPE:-headscape} train"
LOGS=${LOGS:-$(dirname "$0")}
JOBS=${JOBS:-1} # runs at a time; the numbers do not depend on it

# known NAME: what was trained elsewhere is not trained again
known() {
  test -e "$LOGS/$1/run.json" || return 0
  mkdir -p "$OUT/$1/train/units"
  cp -n "$LOGS/$1/run.json" "$OUT/$1/" || true # newer versions of cp call a file that exists a failure
  cp -n "$LOGS/$1/logs"/*.json "$OUT/$1/train/units/" || true
}

# keep: the logs of what is trained so far; also when this is stopped
keep() {
  for run in "$OUT"/*/run.json; do
    from=$(dirname "$run") to=$LOGS/$(basename "$(dirname "$run")")
    mkdir -p "$to/logs"
    cp "$run" "$to/"
    cp "$from/train/units"/*.json "$to/logs/"
  done
}
trap keep EXIT

# compare NAME SEEDS ARGUMENTS: with one seed, then two, and so on
compare() {
  name=$1 most=$2
  shift 2
  known "$name"
  for seeds in $(seq "$most"); do
    $TRAIN "$@" --out "$OUT/$name" --seeds "$seeds" --jobs "$JOBS"
  done
}

compare depth6 5 gpt --text "$BOOKS" --search-steps 600 --rates 1.5e-3,3e-3,6e-3,1.2e-2 \
  --arms standard,hidden,both,realformer,learned,rescaled,longer
compare depth12 3 gpt --text "$BOOKS" --layers 12 --steps 3000 --search-steps 400 --rates 7.5e-4,1.5e-3,3e-3,6e-3 \
  --arms standard,hidden,both
compare depth24 2 gpt --text "$BOOKS" --layers 24 --steps 2500 --search-steps 300 --rates 1.5e-3,3e-3 \
  --arms standard,hidden
compare smollm2 2 smollm2-135m --text "$BOOKS" --tokenizer smollm2-135m --arms standard,hidden --init first
compare vit 3 vit --images "$IMAGES" --batch 32 --steps 15000 --search-steps 2000 --rates 1.25e-4,2.5e-4,5e-4,1e-3,2e-3 \
  --augment none --arms standard,hidden,both,longer
# both rates that did best, each with all seeds; half of its runs are those of depth6
mkdir -p "$OUT/rates6/train/units"
cp -n "$OUT/depth6/run.json" "$OUT/rates6/" || true
cp -n "$OUT/depth6/train/units"/standard-rate0.003-seed?-?*.json "$OUT/depth6/train/units"/hidden-rate0.003-seed?-?*.json \
  "$OUT/depth6/train/units"/baselines-*.json "$OUT/rates6/train/units/" || true
compare rates6 5 gpt --text "$BOOKS" --rates 3e-3,6e-3 --finalists 2 --arms standard,hidden
