"""The production loop as a text that grows: components, their snippets, the program, its chart and what it costs."""
