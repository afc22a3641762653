"""What should be, as pure functions of the view: owners of nodes, objects to have, steps that lead there."""
