/* Sockets for shiva.h, on systems that have those of POSIX. */
#ifndef SHIVA_POSIX_H
#define SHIVA_POSIX_H

#include "shiva.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * shiva_connect connects to a server over TCP, "127.0.0.1:6174", "cell.local:6174" or "[::1]:6174",
 * and returns the socket, which is the caller's to close, or -1 with errno set. Neither the
 * connection nor any later read or write waits longer than that many seconds, 0: as long as it
 * takes.
 */
int shiva_connect(const char *address, unsigned seconds);

/* shiva_socket is the transport of a connected socket, which it does not close. */
struct shiva_transport shiva_socket(int socket);

#ifdef __cplusplus
}
#endif

#endif
