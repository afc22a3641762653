"""The cluster as the operator sees it: facts about each object, kept current, handed out as one immutable view."""
