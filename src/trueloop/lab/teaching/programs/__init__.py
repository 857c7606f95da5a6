"""Programs generated from validated settings; the lab's pages show exactly the source code that runs."""
