"""The programs that the lab's pages show, generated from settings and run under observation."""
