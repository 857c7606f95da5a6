"""What a watched run, or a linted tree, has to say: for people, for editors and CI, and from several processes."""
