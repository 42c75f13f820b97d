/* A transport whose other end is memory, for the tests. */
#ifndef MEMORY_H
#define MEMORY_H

#include "../shiva.h"

struct memory {
    const unsigned char *in; /* what the server sends ... */
    size_t coming;           /* ... and how much of it is left; then it closes */
    unsigned char *out;      /* where the bytes sent go, with this room; NULL: nowhere */
    size_t room, sent;
    size_t piece;  /* the most bytes of one call */
    size_t fails;  /* bytes, in both directions, after which the transport fails */
    uint32_t hash; /* of the bytes sent */
    size_t requests, answers; /* begun */
};

void memory_init(struct memory *m, const void *in, size_t coming, void *out, size_t room);

struct shiva_transport memory_transport(struct memory *m);

/* fnv continues a hash (FNV-1a) over bytes, which begins with FNV. */
#define FNV 2166136261u
uint32_t fnv(uint32_t hash, const void *bytes, size_t n);

/* units tests shiva.c, and returns how many checks failed. */
int units(void);

#endif
