"""Documents as people read them, one file for each screen. Measures and computes nothing that a document lacks."""
