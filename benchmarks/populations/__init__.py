"""Populations whose true values are known, and how often each of the library's promises is broken on samples from them."""
