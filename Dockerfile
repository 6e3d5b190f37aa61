# The queue server, the bus and the page in one image: docs/operations.md, "In a container". It has no tests and no docs.
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY schemas schemas
COPY serving serving
COPY server server
COPY client client
COPY bus bus
COPY web web
COPY pipeline pipeline
RUN python -m venv /opt/qs \
    && /opt/qs/bin/pip install --no-cache-dir --disable-pip-version-check '.[web]' \
    && /opt/qs/bin/python -m compileall -q /opt/qs/lib

FROM python:3.13-slim
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
