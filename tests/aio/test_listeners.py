"""Why we cannot listen on a port."""

import pytest

from gpu_device_plugin.aio.http import ListenError, serving_routes


async def test_an_address_that_is_not_ours_is_said_to_be() -> None:
    with pytest.raises(ListenError) as caught:
        async with serving_routes("192.0.2.1", 9445, []):
            pass
    assert str(caught.value) == (
        "cannot listen on 192.0.2.1:9445: this machine has no such address; choose one of its own, or :9445 for all"
    )
