#!/bin/sh
# All training comparisons of docs/hopfield.md, one after another: about ten hours of one core.
# A run that was killed goes on from its last checkpoint: start this again. Seeds are added one by one, so that the
# result in OUT is complete for the seeds there are at any time.
#
#   BOOKS=books IMAGES=fashion-mnist OUT=runs/hopfield sh docs/results/hopfield/plan.sh
#
# BOOKS: what scripts/make_austen.py writes. IMAGES: the four files of Debian's dataset-fashion-mnist.
set -e
: "${BOOKS:?a folder of text files, see scripts/make_austen.py}" "${IMAGES:?a folder with the files of Fashion-MNIST}"
OUT=${OUT:-runs/hopfield}
export OMP_NUM_THREADS=1
TRAIN="${HEADSCAPE:-headscape} train"

for seeds in 1 2 3 4 5; do
  $TRAIN gpt --out "$OUT/depth6" --text "$BOOKS" --seeds $seeds --search-steps 600 \
    --arms standard,hidden,both,realformer,learned,rescaled,longer
done
for seeds in 1 2 3; do
  $TRAIN vit --out "$OUT/vit" --images "$IMAGES" --seeds $seeds --batch 32 --steps 6000 --search-steps 900 \
    --rates 5e-4,1e-3,2e-3 --augment none --arms standard,hidden,both,longer
done
for seeds in 1 2 3; do
  $TRAIN gpt --out "$OUT/depth12" --text "$BOOKS" --layers 12 --seeds $seeds --steps 3000 --search-steps 400 \
    --arms standard,hidden,both
done
for seeds in 1 2; do
  $TRAIN gpt --out "$OUT/depth24" --text "$BOOKS" --layers 24 --seeds $seeds --steps 2500 --search-steps 300 \
    --rates 1.5e-3,3e-3 --arms standard,hidden
done
for seeds in 1 2; do
  $TRAIN smollm2-135m --out "$OUT/smollm2" --text "$BOOKS" --tokenizer smollm2-135m --seeds $seeds --arms standard,hidden \
    --init first
done
