"""The production loop, built from components: their snippets, the program, its flow chart and its costs."""
