"""Both resources, under the names that they have where nobody configures others."""

from gpu_device_plugin.model.resources import Kind, Resource
from tests import names

MEM = Resource(Kind.MEMORY, names.MEM)
COUNT = Resource(Kind.COUNT, names.COUNT)
RESOURCES = (MEM, COUNT)
