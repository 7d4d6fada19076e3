"""Evidence of a cluster, and what is read from it: findings, stories, changes, pages, bundles."""
