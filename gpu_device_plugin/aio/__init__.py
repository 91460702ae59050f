"""Small asyncio tools that know nothing of GPUs or Kubernetes."""
