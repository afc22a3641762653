"""What is, in words and figures, as pure functions of the view: statuses, conditions, Events."""
