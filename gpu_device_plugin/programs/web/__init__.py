"""The page: the cluster at a glance, live, with the rights of the person who looks."""
