"""`trueloop verify`: what to verify, and the HTML page of the evidence."""
