"""Language models before and after calibration: a run of SmolLM2, and the small made logs of the tests."""
