module kvtier.io/pause

go 1.22
