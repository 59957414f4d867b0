"""A curve for each class against the rest: logistic ones, isotonic ones, splines, bins; several labels a row."""
