# Any image with glibc (NVIDIA's libraries need it), libstdc++ (grpc does) and Python 3.11 or newer as python3.
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY gpu_device_plugin gpu_device_plugin
# pip of the base image installs into an environment that has none itself.
RUN python3 -m venv --without-pip /opt/gpu-device-plugin \
 && pip --python /opt/gpu-device-plugin/bin/python install --no-cache-dir --disable-pip-version-check --no-compile \
      --constraint constraints.txt . \
# Without byte code the agent takes twice the memory while it starts, and on a read-only file system it can never write
# any. Level 2 leaves out docstrings and assertions: 2 MB less. It is taken as it is, whatever becomes of the files' times on the way into a registry.
 && python3 -m compileall -q -o 2 --invalidation-mode unchecked-hash /opt/gpu-device-plugin/lib \
 && chmod -R a-w /opt/gpu-device-plugin

FROM ${BASE}
LABEL org.opencontainers.image.title="gpu-device-plugin" \
      org.opencontainers.image.description="Share the GPUs of a Kubernetes cluster between pods, by GPU memory." \
      org.opencontainers.image.licenses="Apache-2.0"
# The standard library comes without byte code in the official images. What installs software leaves.
RUN python3 -m compileall -q -o 2 --invalidation-mode unchecked-hash \
      -x '/(site-packages|test|tests|lib2to3|idlelib|turtledemo)/' \
      "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
 && python3 -m pip uninstall --yes --quiet --root-user-action=ignore pip \
 && rm -rf "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')/ensurepip"
COPY --from=build /opt/gpu-device-plugin /opt/gpu-device-plugin
ENV PATH=/opt/gpu-device-plugin/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONOPTIMIZE=2 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility
# The kubelet's sockets and checkpoint belong to root. The manifest takes away every capability.
USER 0:0
ENTRYPOINT ["gpu-device-plugin"]
CMD ["node"]
