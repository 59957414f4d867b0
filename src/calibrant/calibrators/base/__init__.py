"""What every calibrator stands on: the base classes, saving, one solver, checks of rows, folds."""
