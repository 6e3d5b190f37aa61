# The queue server, the bus and the page in one image: docs/operations.md, "In a container". It has no tests and no docs.
# Python in it is a PGO build (--enable-optimizations), as `qs --version` in the image says.
# The tag says what the digest is; only the digest counts. To change it: docker buildx imagetools inspect python:3.13-slim
FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS build
WORKDIR /src
COPY requirements requirements
# Nothing is installed whose hash is not in these files. What builds qs stays in this stage.
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements/build.txt \
    && python -m venv /opt/qs \
    && /opt/qs/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY schemas schemas
COPY payloads payloads
COPY serving serving
COPY storage storage
COPY server server
COPY client client
COPY bus bus
COPY web web
COPY pipeline pipeline
COPY testing testing
COPY packaging packaging
RUN /opt/build/bin/pip wheel --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation -w /wheels . \
    && /opt/qs/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --no-index /wheels/*.whl \
    && /opt/qs/bin/python -m compileall -q /opt/qs/lib

FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b
# A number, so that Kubernetes can tell that it is not root.
RUN groupadd --gid 10001 qs \
    && useradd --uid 10001 --gid qs --no-create-home --home-dir /var/lib/qs --shell /usr/sbin/nologin qs \
    && install -d -o qs -g qs -m 0700 /var/lib/qs
COPY --from=build /opt/qs /opt/qs
ENV PATH=/opt/qs/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
VOLUME /var/lib/qs
# The server, the bus, the page.
EXPOSE 9876 9878 9880
STOPSIGNAL SIGTERM
# Asks the server of this container. With TLS, or for the bus, set QS_SERVER to what it has to ask.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 CMD ["qs", "--timeout", "4", "ping"]
# It ends with a line that asks for --access FILE, or for --open: say who may do what.
CMD ["queue-server.py", "--root", "/var/lib/qs", "--host", "0.0.0.0"]
