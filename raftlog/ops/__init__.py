"""Evidence about a cluster, and its evaluation: findings, stories, changes, pages, bundles."""
