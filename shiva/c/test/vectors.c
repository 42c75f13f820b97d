/*
 * Reads messages from the file vectors.in, sends each again as it was read, and prints its
 * contents. The output is the same on every machine, whatever its byte order, and however the bytes
 * are split. The file has inputs, each preceded by its size as a big-endian number of 4 bytes.
 */
#include "memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static unsigned char input[512 << 10];
static char metadata[80 << 10];

/* Off when an input is read again in other pieces: then only hashes of the output are compared. */
static int printing;
static uint32_t printed;

/* The description of a message is printed when all of the message has arrived. */
static char said[32 << 10];
static size_t used;

static void say(const char *format, ...)
{
    va_list values;

    va_start(values, format);
    used += (size_t)vsnprintf(said + used, sizeof said - used, format, values);
    va_end(values);
}

static void print(void)
{
    printed = fnv(printed, said, used);
    if (printing)
        fwrite(said, used, 1, stdout);
    used = 0;
}

/* little hashes elements in little-endian order. */
static uint32_t little(uint32_t hash, unsigned dtype, const unsigned char *elements, size_t n)
{
    static const unsigned char widths[] = {2, 4, 8, 1, 1, 2, 2, 4, 4, 8, 8, 8, 16, 8, 4, 8, 0, 1};
    const uint16_t one = 1;
    size_t flip = *(const unsigned char *)&one ? 0 : (size_t)widths[dtype] - 1, i;

    for (i = 0; i < n; i++)
        hash = fnv(hash, elements + (i ^ flip), 1);
    return hash;
}

static enum shiva_status tensor(struct shiva *from, struct shiva *to)
{
    static uint32_t shape[255];
    unsigned char elements[48];
    struct shiva_tensor t;
    uint32_t hash = FNV, left;
    unsigned i;
    enum shiva_status status = shiva_next(from, &t, shape, 255);

    if (status != SHIVA_OK)
        return status;
    say("tensor %u [", (unsigned)t.dtype);
    for (i = 0; i < t.rank; i++)
        say("%lu ", (unsigned long)shape[i]);
    shiva_tensor(to, t.dtype, t.rank, shape);
    for (left = t.bytes; left > 0 && status == SHIVA_OK;) {
        size_t n = left < sizeof elements ? left : sizeof elements;

        status = shiva_read(from, elements, n);
        hash = little(hash, (unsigned)t.dtype, elements, n);
        shiva_part(to, elements, n);
        left -= (uint32_t)n;
    }
    if (status == SHIVA_OK)
        say("] %lu bytes %08lx\n", (unsigned long)t.bytes, (unsigned long)hash);
    return status;
}

static enum shiva_status message(struct memory *in, struct shiva *from, size_t piece)
{
    unsigned char buffer[64];
    struct shiva_answer answer;
    struct shiva to;
    struct memory out;
    size_t route = in->coming > 9 ? in->in[9] : 0;
    unsigned i;
    enum shiva_status status = shiva_answer(from, &answer);

    used = 0;
    if (status != SHIVA_OK)
        return status;
    say("message of %u tensors\n", answer.tensors);
    memory_init(&out, NULL, 0, NULL, 0);
    out.piece = piece;
    shiva_init(&to, memory_transport(&out), buffer, sizeof buffer);
    shiva_begin(&to, answer.tensors, route, answer.metadata);
    for (i = 0; i < answer.tensors; i++) {
        status = tensor(from, &to);
        if (status != SHIVA_OK)
            return status;
    }
    status = shiva_finish(from, metadata, sizeof metadata);
    if (status != SHIVA_OK && status != SHIVA_REFUSED)
        return status;
    say("metadata of %lu bytes %08lx%s\n", (unsigned long)answer.metadata,
        (unsigned long)fnv(FNV, metadata, strlen(metadata)),
        status == SHIVA_REFUSED ? ", refused" : "");
    status = shiva_end(&to, (const char *)in->in - route, metadata);
    say("again %lu bytes %08lx, %s\n", (unsigned long)out.sent, (unsigned long)out.hash,
        shiva_explain(status));
    print();
    return SHIVA_OK;
}

/* stream reads an input to its end. */
static void stream(size_t n, size_t piece)
{
    struct shiva from;
    struct memory in;
    enum shiva_status status;

    memory_init(&in, input, n, NULL, 0);
    in.piece = piece;
    shiva_init(&from, memory_transport(&in), NULL, 0);
    do
        status = message(&in, &from, piece);
    while (status == SHIVA_OK);
    used = 0;
    if (status == SHIVA_LIMIT)
        say("%s at -\n", shiva_explain(status)); /* where depends on how large a tensor may be */
    else
        say("%s at %lu\n", shiva_explain(status), (unsigned long)(n - in.coming));
    print();
}

int main(void)
{
    static const size_t pieces[] = {1, 2, 3, 5, 7, 11, 13, 1000};
    unsigned char size[4];
    FILE *file = fopen("vectors.in", "rb");
    int failed = units();

    while (file != NULL && fread(size, sizeof size, 1, file) == 1) {
        size_t n = (size_t)size[0] << 24 | (size_t)size[1] << 16 | (size_t)size[2] << 8 | size[3];
        size_t i;
        uint32_t whole;

        if (n > sizeof input || (n > 0 && fread(input, n, 1, file) != 1)) {
            puts("vectors.in is cut");
            return 1;
        }
        printing = 1;
        printed = FNV;
        stream(n, (size_t)-1);
        whole = printed;
        printing = 0;
        for (i = 0; i < sizeof pieces / sizeof *pieces; i++) {
            printed = FNV;
            stream(n, pieces[i]);
            if (printed != whole)
                printf("otherwise in pieces of %lu\n", (unsigned long)pieces[i]);
        }
    }
    if (file == NULL) {
        puts("there is no vectors.in");
        return 1;
    }
    fclose(file);
    return failed > 0;
}
