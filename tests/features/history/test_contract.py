from gpu_device_plugin.features.history.contract import HISTORY_PATH, gpu_path, namespace_path


def test_the_history_of_a_gpu_and_of_a_namespace_lie_below_that_of_the_node() -> None:
    assert gpu_path(0) == "/history/gpus/0"
    assert namespace_path("team-a") == "/history/namespaces/team-a"
    assert all(path.startswith(HISTORY_PATH) for path in (gpu_path(11), namespace_path("gpus")))
