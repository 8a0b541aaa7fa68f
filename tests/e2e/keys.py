# SPDX-License-Identifier: Apache-2.0
"""Callers with keys."""
import hashlib

import grpc

from serving import Server


def digest(key):
    return hashlib.sha256(key.encode()).hexdigest()


ADMIN_KEY = "key-of-an-administrator"
# The settings of a server with AdminService, and what a call of it then carries.
ADMIN = ("admin.enable=true", f"admin.callers=[{{name: ops, keys: [{digest(ADMIN_KEY)}]}}]")


class WithKey(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    def __init__(self, key):
        self._metadata = bearer(key)

    def _call(self, proceed, details, asked):
        class Details(grpc.ClientCallDetails):
            pass
        changed = Details()
        for name in ("method", "timeout", "credentials", "wait_for_ready", "compression"):
            setattr(changed, name, getattr(details, name, None))
        changed.metadata = details.metadata or self._metadata
        return proceed(changed, asked)

    intercept_unary_unary = _call
    intercept_unary_stream = _call


def bearer(key, scheme="Bearer "):
    return [("authorization", scheme + key)]


class KeyServer(Server):
    """Its own calls, for health, carry a key."""

    def __init__(self, key, *args, **kwargs):
        self.key = key
        super().__init__(*args, **kwargs)

    def new_channel(self):
        return grpc.intercept_channel(super().new_channel(), WithKey(self.key))
