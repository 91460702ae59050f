"""What libraries would load for nothing stays out of memory."""

import subprocess
import sys


def run(program: str, **environ: str) -> str:
    """Run a program in a process of its own: what was imported before would decide the outcome."""
    done = subprocess.run([sys.executable, "-c", program], env=environ, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_aiohttp_is_imported_without_the_certificates_of_the_system() -> None:
    """It makes its TLS contexts while it is imported; the environment is afterwards what it was before."""
    program = """
import gc, os, ssl
from gpu_device_plugin.aio import low_memory_imports
low_memory_imports.import_aiohttp()
contexts = [found for found in gc.get_objects() if isinstance(found, ssl.SSLContext)]
print({context.cert_store_stats()["x509"] for context in contexts})
print({name: text for name, text in os.environ.items() if name.startswith("SSL")})
"""
    assert run(program, SSL_CERT_FILE="/system.crt").splitlines() == ["{0}", "{'SSL_CERT_FILE': '/system.crt'}"]


def test_a_second_import_changes_nothing() -> None:
    program = """
import aiohttp, os
from gpu_device_plugin.aio import low_memory_imports
before = dict(os.environ)
low_memory_imports.import_aiohttp()
print(dict(os.environ) == before)
"""
    assert run(program) == "True"
