"""What goes wrong between backward and step."""
