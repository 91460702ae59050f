# Any image with glibc (NVIDIA's libraries need it), libstdc++ (grpc does) and Python 3.11 or newer as python3.
ARG BASE=python:3.13-slim-bookworm
# The same Python with pip and venv, where BASE has no pip. The final image contains none of it.
ARG BUILDER=${BASE}

FROM ${BUILDER} AS build
WORKDIR /src
COPY requirements.lock requirements-build.lock ./
# For packages from your own index: --secret id=pip.conf,src=FILE
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    pip="python3 -m pip --disable-pip-version-check --no-cache-dir" \
 && for environment in gpu-device-plugin build; do python3 -m venv --without-pip /opt/$environment; done \
 && $pip --python /opt/gpu-device-plugin/bin/python install --no-compile --no-deps --only-binary=:all: --require-hashes \
      --requirement requirements.lock \
 && $pip --python /opt/build/bin/python install --no-deps --only-binary=:all: --require-hashes \
      --requirement requirements-build.lock
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY gpu_device_plugin gpu_device_plugin
RUN pip="python3 -m pip --disable-pip-version-check --no-cache-dir" \
 && $pip --python /opt/build/bin/python wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir dist . \
 && $pip --python /opt/gpu-device-plugin/bin/python install --no-index --no-compile --no-deps dist/*.whl \
# Without byte code the agent takes twice the memory while it starts, and on a read-only file system it can never write
# any. Level 2 leaves out docstrings and assertions, and no_debug_ranges the columns of instructions, which only mark
# places in tracebacks: 3 MB less. unchecked-hash: byte code stays valid when a registry changes the times of the files.
 && python3 -X no_debug_ranges -m compileall -q -o 2 --invalidation-mode unchecked-hash /opt/gpu-device-plugin/lib \
 && chmod -R a=rX /opt/gpu-device-plugin

FROM ${BASE}
ARG BASE
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gpu-device-plugin" \
      org.opencontainers.image.description="Share the GPUs of a Kubernetes cluster between pods, by GPU memory." \
      org.opencontainers.image.version="0.2.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE}"
# One arena of malloc serves all threads, which hold Python's lock anyway: half a MB less.
ENV PATH=/opt/gpu-device-plugin/bin:$PATH \
    MALLOC_ARENA_MAX=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONOPTIMIZE=2
# The official images have no byte code of the standard library. Package installers are removed.
RUN stdlib="$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
 && python3 -X no_debug_ranges -m compileall -q -o 2 --invalidation-mode unchecked-hash \
      -x '/(site-packages|dist-packages|test|tests|lib2to3|idlelib|turtledemo)/' "$stdlib" \
 && if python3 -c 'import pip' 2> /dev/null; then \
      python3 -m pip uninstall --yes --quiet --root-user-action=ignore pip; \
    fi \
 && rm -rf "$stdlib/ensurepip"
COPY --from=build /opt/gpu-device-plugin /opt/gpu-device-plugin
# Any user works, on a read-only root file system. The node agent has to be root, which its manifest sets: the kubelet's
# sockets and checkpoint belong to root.
USER 65532:65532
# The build fails if a program cannot start. Programs import their modules only when they run, gRPC's compiled code too.
RUN ["gpu-device-plugin", "--version"]
RUN ["/opt/gpu-device-plugin/bin/python", "-c", \
     "import gpu_device_plugin.features.limits.helper_program, gpu_device_plugin.features.mps.supervisor.mps_program, gpu_device_plugin.programs.agent.node_program, gpu_device_plugin.programs.cost.cost_program, gpu_device_plugin.programs.demo.demo_program, gpu_device_plugin.programs.doctor.doctor_program, gpu_device_plugin.programs.doctor.node_reading, gpu_device_plugin.programs.extender.extender_program, gpu_device_plugin.programs.inspect.inspect_program, gpu_device_plugin.programs.simulate.simulate_program, gpu_device_plugin.programs.web.web_program"]
ENTRYPOINT ["gpu-device-plugin"]
CMD ["--help"]
