"""Tables that people have, as their producers write them: whether they are read, by which command, and with right numbers."""
