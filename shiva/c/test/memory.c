#include "memory.h"

#include <string.h>

uint32_t fnv(uint32_t hash, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;

    for (; n > 0; n--)
        hash = (hash ^ *at++) * 16777619u;
    return hash;
}

void memory_init(struct memory *m, const void *in, size_t coming, void *out, size_t room)
{
    memset(m, 0, sizeof *m);
    m->in = in;
    m->coming = coming;
    m->out = out;
    m->room = room;
    m->piece = (size_t)-1;
    m->fails = (size_t)-1;
    m->hash = FNV;
}

/* some returns how many of n bytes to move now; 0: the transport fails. */
static size_t some(struct memory *m, size_t n)
{
    if (n > m->piece)
        n = m->piece;
    if (n > m->fails)
        n = m->fails;
    m->fails -= n;
    return n;
}

static ptrdiff_t memory_send(void *device, const void *bytes, size_t n)
{
    struct memory *m = device;

    n = some(m, n);
    if (n == 0 || (m->out != NULL && n > m->room - m->sent))
        return -1;
    if (m->out != NULL)
        memcpy(m->out + m->sent, bytes, n);
    m->hash = fnv(m->hash, bytes, n);
    m->sent += n;
    return (ptrdiff_t)n;
}

static ptrdiff_t memory_recv(void *device, void *bytes, size_t n)
{
    struct memory *m = device;

    if (m->coming == 0)
        return 0;
    n = some(m, n < m->coming ? n : m->coming);
    if (n == 0)
        return -1;
    memcpy(bytes, m->in, n);
    m->in += n;
    m->coming -= n;
    return (ptrdiff_t)n;
}

static void memory_sending(void *device)
{
    struct memory *m = device;

    m->requests++;
}

static void memory_receiving(void *device)
{
    struct memory *m = device;

    m->answers++;
}

struct shiva_transport memory_transport(struct memory *m)
{
    struct shiva_transport transport = {NULL, memory_send, memory_recv, memory_sending,
                                        memory_receiving};

    transport.device = m;
    return transport;
}
