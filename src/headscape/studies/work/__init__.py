"""How a study is run: units of work, the engines that run them, where results go, and what is reused."""
