#include "shiva.h"

/* Sizes and values of the wire; ../README.md has the diagram. */
enum { HEADER = 12, MAGIC_SUM = 6 + 66 + 11 + 1 };

static const unsigned char magic[4] = {6, 66, 11, 1};

/* Bytes of an element by code; 0: no such dtype. */
static const unsigned char sizes[] = {2, 4, 8, 1, 1, 2, 2, 4, 4, 8, 8, 8, 16, 8, 8, 16, 0, 1};

static size_t size_of(unsigned dtype) { return dtype < sizeof sizes ? sizes[dtype] : 0; }

/* named returns the code that enum shiva_dtype names: 2 and 10 are other codes of such dtypes. */
static uint8_t named(uint8_t code)
{
    if (code == 2)
        return SHIVA_FLOAT64;
    if (code == 10)
        return SHIVA_INT64;
    return code;
}

/*
 * flip_of returns the mask that maps the index of a byte of elements to its index on the wire, by
 * exclusive or: all bits within the element on a little-endian host. The two halves of a complex
 * number are reversed separately.
 */
static size_t flip_of(unsigned dtype)
{
    const uint16_t one = 1;
    size_t size = size_of(dtype);

    if (dtype == SHIVA_COMPLEX64 || dtype == SHIVA_COMPLEX128)
        size /= 2;
    return *(const unsigned char *)&one ? size - 1 : 0;
}

/* measure multiplies a tensor's bytes by a dimension unless that is 0, which it notes in empty. */
static enum shiva_status measure(uint32_t *bytes, int *empty, uint32_t dimension)
{
    uint64_t product = (uint64_t)*bytes * dimension;

    if (dimension > INT32_MAX)
        return SHIVA_NEGATIVE;
    if (dimension == 0)
        *empty = 1;
    else if (product > UINT32_MAX)
        return SHIVA_LIMIT;
    else
        *bytes = (uint32_t)product;
    return SHIVA_OK;
}

void shiva_init(struct shiva *s, struct shiva_transport transport, void *buffer, size_t room)
{
    s->transport = transport;
    s->out.buffer = buffer;
    s->out.room = room;
    s->out.used = 0;
    s->out.left = 0;
    s->out.inside = s->in.inside = 0;
    s->out.fault = s->in.fault = SHIVA_OK;
}

/* Sending. */

static enum shiva_status fail_out(struct shiva *s, enum shiva_status fault)
{
    if (s->out.fault == SHIVA_OK)
        s->out.fault = fault;
    return s->out.fault;
}

static void send_all(struct shiva *s, const unsigned char *bytes, size_t n)
{
    while (n > 0 && s->out.fault == SHIVA_OK) {
        ptrdiff_t sent = s->transport.send(s->transport.device, bytes, n);

        if (sent <= 0 || (size_t)sent > n) {
            s->out.fault = SHIVA_IO;
            return;
        }
        bytes += sent;
        n -= (size_t)sent;
    }
}

static void flush(struct shiva *s)
{
    send_all(s, s->out.buffer, s->out.used);
    s->out.used = 0;
}

static void put(struct shiva *s, unsigned char byte)
{
    if (s->out.used == s->out.room)
        flush(s);
    s->out.buffer[s->out.used++] = byte;
}

static void put_number(struct shiva *s, uint32_t number)
{
    put(s, (unsigned char)(number >> 24));
    put(s, (unsigned char)(number >> 16));
    put(s, (unsigned char)(number >> 8));
    put(s, (unsigned char)number);
}

enum shiva_status shiva_begin(struct shiva *s, unsigned tensors, size_t route, uint32_t metadata)
{
    unsigned sum;
    size_t i;

    if (s->out.fault != SHIVA_OK)
        return s->out.fault;
    if (s->out.inside)
        return fail_out(s, SHIVA_ORDER);
    if (tensors > UINT8_MAX || route > UINT8_MAX || metadata > INT32_MAX || s->out.room == 0)
        return fail_out(s, SHIVA_LIMIT);
    if (s->transport.sending != NULL)
        s->transport.sending(s->transport.device);
    s->out.inside = 1;
    s->out.tensors = (uint8_t)tensors;
    s->out.route = (uint8_t)route;
    s->out.metadata = metadata;
    for (i = 0; i < sizeof magic; i++)
        put(s, magic[i]);
    put_number(s, metadata);
    put(s, s->out.tensors);
    put(s, s->out.route);
    /* The checksums add values, not bytes: only the lowest byte of the metadata's size counts. */
    sum = MAGIC_SUM + (unsigned)(metadata & UINT8_MAX) + s->out.tensors + s->out.route;
    put(s, (unsigned char)sum);
    put(s, (unsigned char)(2 * sum));
    return s->out.fault;
}

enum shiva_status shiva_tensor(struct shiva *s, enum shiva_dtype dtype, unsigned rank,
                               const uint32_t *shape)
{
    uint32_t bytes = (uint32_t)size_of((unsigned)dtype);
    int empty = 0;
    unsigned i;

    if (s->out.fault != SHIVA_OK)
        return s->out.fault;
    if (s->out.left > 0)
        return fail_out(s, SHIVA_SHORT);
    if (!s->out.inside || s->out.tensors == 0)
        return fail_out(s, SHIVA_ORDER);
    if (bytes == 0)
        return fail_out(s, SHIVA_DTYPE);
    if (rank > UINT8_MAX)
        return fail_out(s, SHIVA_LIMIT);
    for (i = 0; i < rank; i++) {
        enum shiva_status fault = measure(&bytes, &empty, shape[i]);

        if (fault != SHIVA_OK)
            return fail_out(s, fault);
    }
    s->out.tensors--;
    s->out.dtype = named((uint8_t)dtype);
    s->out.left = empty ? 0 : bytes;
    put(s, (unsigned char)rank);
    put(s, s->out.dtype);
    for (i = 0; i < rank; i++)
        put_number(s, shape[i]);
    return s->out.fault;
}

enum shiva_status shiva_part(struct shiva *s, const void *elements, size_t bytes)
{
    const unsigned char *from = elements;
    size_t flip, i;

    if (s->out.fault != SHIVA_OK)
        return s->out.fault;
    if (!s->out.inside)
        return fail_out(s, SHIVA_ORDER);
    if (bytes > s->out.left)
        return fail_out(s, SHIVA_LONG);
    if (bytes == 0)
        return SHIVA_OK;
    if (bytes & (size_of(s->out.dtype) - 1))
        return fail_out(s, SHIVA_SHORT);
    s->out.left -= (uint32_t)bytes;
    flip = flip_of(s->out.dtype);
    if (flip == 0 && bytes >= s->out.room && s->out.dtype != SHIVA_LONGDOUBLE) {
        flush(s);
        send_all(s, from, bytes);
        return s->out.fault;
    }
    for (i = 0; i < bytes; i++)
        put(s, s->out.dtype == SHIVA_LONGDOUBLE && (i & 15) < 6 ? 0 : from[i ^ flip]);
    return s->out.fault;
}

/* conclude ends a request with its metadata, and a route of two parts. */
static enum shiva_status conclude(struct shiva *s, const char *route, size_t n, const char *more,
                                  const char *metadata)
{
    uint32_t used = 0;
    size_t i;

    if (s->out.fault != SHIVA_OK)
        return s->out.fault;
    if (!s->out.inside)
        return fail_out(s, SHIVA_ORDER);
    if (s->out.tensors > 0 || s->out.left > 0)
        return fail_out(s, SHIVA_SHORT);
    if (metadata == NULL || metadata[0] == 0)
        metadata = s->out.metadata > 0 ? "{}" : "";
    for (; metadata[used] != 0; used++) {
        if (used == s->out.metadata)
            return fail_out(s, SHIVA_LONG);
        put(s, (unsigned char)metadata[used]);
    }
    for (; used < s->out.metadata; used++)
        put(s, ' ');
    for (i = 0; i < s->out.route; i++)
        put(s, (unsigned char)(i < n ? route[i] : more[i - n]));
    flush(s);
    s->out.inside = 0;
    return s->out.fault;
}

enum shiva_status shiva_end(struct shiva *s, const char *route, const char *metadata)
{
    return conclude(s, route, s->out.route, NULL, metadata);
}

enum shiva_status shiva_latest(struct shiva *s, const char *model, const char *metadata)
{
    static const char step[] = "/latest";
    uint32_t bytes = 0;
    size_t n = 0;

    /* With a bound, or the compiler makes it strlen. */
    while (n <= 255 && model[n] != 0)
        n++;
    while (metadata != NULL && bytes < UINT32_MAX && metadata[bytes] != 0)
        bytes++;
    shiva_begin(s, 0, n + sizeof step - 1, bytes);
    return conclude(s, model, n, step, metadata);
}

/* Receiving. */

static enum shiva_status fail_in(struct shiva *s, enum shiva_status fault)
{
    if (s->in.fault == SHIVA_OK)
        s->in.fault = fault;
    return s->in.fault;
}

static void receive(struct shiva *s, unsigned char *bytes, size_t n)
{
    while (n > 0 && s->in.fault == SHIVA_OK) {
        ptrdiff_t got = s->transport.recv(s->transport.device, bytes, n);

        if (got <= 0 || (size_t)got > n) {
            s->in.fault = got != 0 ? SHIVA_IO : s->in.inside ? SHIVA_TRUNCATED : SHIVA_CLOSED;
            return;
        }
        s->in.inside = 1;
        bytes += got;
        n -= (size_t)got;
    }
}

static void skip(struct shiva *s, uint32_t n)
{
    unsigned char rest[32];

    while (n > 0 && s->in.fault == SHIVA_OK) {
        size_t some = n < sizeof rest ? n : sizeof rest;

        receive(s, rest, some);
        n -= (uint32_t)some;
    }
}

static uint32_t number(const unsigned char *b)
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

enum shiva_status shiva_answer(struct shiva *s, struct shiva_answer *answer)
{
    unsigned char header[HEADER];
    unsigned sum = MAGIC_SUM;
    size_t i;

    if (s->in.fault != SHIVA_OK)
        return s->in.fault;
    if (s->in.inside)
        return fail_in(s, SHIVA_ORDER);
    if (s->transport.receiving != NULL)
        s->transport.receiving(s->transport.device);
    receive(s, header, sizeof header);
    if (s->in.fault != SHIVA_OK)
        return s->in.fault;
    for (i = 0; i < sizeof magic; i++)
        if (header[i] != magic[i])
            return fail_in(s, SHIVA_MAGIC);
    sum += (unsigned)header[7] + header[8] + header[9];
    if (header[10] != (unsigned char)sum || header[11] != (unsigned char)(2 * sum))
        return fail_in(s, SHIVA_CRC);
    if (header[4] > INT8_MAX)
        return fail_in(s, SHIVA_NEGATIVE);
    s->in.left = 0;
    s->in.metadata = answer->metadata = number(header + 4);
    s->in.tensors = header[8];
    s->in.route = header[9];
    answer->tensors = header[8];
    return SHIVA_OK;
}

enum shiva_status shiva_next(struct shiva *s, struct shiva_tensor *tensor, uint32_t *shape,
                             unsigned room)
{
    unsigned char field[4];
    uint32_t bytes;
    int empty = 0;
    unsigned i;

    if (s->in.fault != SHIVA_OK)
        return s->in.fault;
    if (!s->in.inside || s->in.tensors == 0)
        return fail_in(s, SHIVA_ORDER);
    skip(s, s->in.left);
    receive(s, field, 2);
    if (s->in.fault != SHIVA_OK)
        return s->in.fault;
    tensor->rank = field[0];
    s->in.dtype = named(field[1]);
    tensor->dtype = (enum shiva_dtype)s->in.dtype;
    bytes = (uint32_t)size_of(s->in.dtype);
    if (bytes == 0)
        return fail_in(s, SHIVA_DTYPE);
    if (room > 0 && tensor->rank > room)
        return fail_in(s, SHIVA_RANK);
    for (i = 0; i < tensor->rank; i++) {
        enum shiva_status fault;

        receive(s, field, sizeof field);
        if (s->in.fault != SHIVA_OK)
            return s->in.fault;
        fault = measure(&bytes, &empty, number(field));
        if (fault != SHIVA_OK)
            return fail_in(s, fault);
        if (room > 0)
            shape[i] = number(field);
    }
    s->in.tensors--;
    s->in.left = tensor->bytes = empty ? 0 : bytes;
    return SHIVA_OK;
}

enum shiva_status shiva_read(struct shiva *s, void *elements, size_t bytes)
{
    unsigned char *to = elements;
    size_t flip, i;

    if (s->in.fault != SHIVA_OK)
        return s->in.fault;
    if (!s->in.inside)
        return fail_in(s, SHIVA_ORDER);
    if (bytes > s->in.left)
        return fail_in(s, SHIVA_LONG);
    if (bytes == 0)
        return SHIVA_OK;
    if (bytes & (size_of(s->in.dtype) - 1))
        return fail_in(s, SHIVA_SHORT);
    receive(s, to, bytes);
    s->in.left -= (uint32_t)bytes;
    flip = flip_of(s->in.dtype);
    for (i = 0; flip > 0 && i < bytes; i++)
        if (i < (i ^ flip)) {
            unsigned char byte = to[i];

            to[i] = to[i ^ flip];
            to[i ^ flip] = byte;
        }
    return s->in.fault;
}

enum shiva_status shiva_finish(struct shiva *s, char *metadata, size_t room)
{
    static const char error[] = {'!', 'e', 'r', 'r', 'o', 'r'};
    unsigned char route[sizeof error];
    struct shiva_tensor tensor;
    uint32_t taken = 0;
    int refused;
    size_t i;

    if (room > 0)
        metadata[0] = 0;
    if (s->in.fault != SHIVA_OK)
        return s->in.fault;
    if (!s->in.inside)
        return fail_in(s, SHIVA_ORDER);
    while (s->in.fault == SHIVA_OK && s->in.tensors > 0)
        shiva_next(s, &tensor, NULL, 0);
    skip(s, s->in.left);
    if (s->in.fault == SHIVA_OK && room > 0) {
        taken = s->in.metadata < room ? s->in.metadata : (uint32_t)(room - 1);
        receive(s, (unsigned char *)metadata, taken);
        metadata[taken] = 0;
    }
    skip(s, s->in.metadata - taken);
    refused = s->in.route == sizeof error;
    if (refused)
        receive(s, route, sizeof route);
    else
        skip(s, s->in.route);
    if (s->in.fault != SHIVA_OK)
        return s->in.fault;
    s->in.inside = 0;
    for (i = 0; refused && i < sizeof error; i++)
        refused = route[i] == (unsigned char)error[i];
    return refused ? SHIVA_REFUSED : SHIVA_OK;
}

/* Metadata. */

/* A text being written: characters beyond its room are counted, but not stored. */
struct text {
    char *at;
    size_t room, used;
};

static void write_char(struct text *t, char c)
{
    if (t->used < t->room)
        t->at[t->used] = c;
    t->used++;
}

static void write_quoted(struct text *t, const char *from)
{
    static const char digits[] = "0123456789abcdef";

    write_char(t, '"');
    for (; *from != 0; from++) {
        unsigned char c = (unsigned char)*from;

        if (c < ' ') {
            write_char(t, '\\');
            write_char(t, 'u');
            write_char(t, '0');
            write_char(t, '0');
            write_char(t, digits[c >> 4]);
            write_char(t, digits[c & 15]);
            continue;
        }
        if (c == '"' || c == '\\')
            write_char(t, '\\');
        write_char(t, *from);
    }
    write_char(t, '"');
}

static void write_number(struct text *t, int64_t value)
{
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    char digits[20];
    size_t n = 0;

    if (value < 0)
        write_char(t, '-');
    do
        digits[n++] = (char)('0' + rest % 10);
    while ((rest /= 10) > 0);
    while (n > 0)
        write_char(t, digits[--n]);
}

/* add writes a member over the closing brace of an object: a number if text is NULL. */
static enum shiva_status add(char *object, size_t room, const char *key, const char *text,
                             int64_t value)
{
    struct text t = {object, room, 0};
    size_t end = 0;

    while (end < room && object[end] != 0)
        end++;
    if (end == room || end < 2 || object[end - 1] != '}')
        return SHIVA_ORDER;
    t.used = end - 1;
    if (end > 2)
        write_char(&t, ',');
    write_quoted(&t, key);
    write_char(&t, ':');
    if (text != NULL)
        write_quoted(&t, text);
    else
        write_number(&t, value);
    write_char(&t, '}');
    write_char(&t, 0);
    if (t.used <= room)
        return SHIVA_OK;
    object[end - 1] = '}';
    object[end] = 0;
    return SHIVA_LIMIT;
}

enum shiva_status shiva_add_text(char *object, size_t room, const char *key, const char *text)
{
    return add(object, room, key, text, 0);
}

enum shiva_status shiva_add_number(char *object, size_t room, const char *key, int64_t number)
{
    return add(object, room, key, NULL, number);
}

static const char *skip_blanks(const char *at)
{
    while (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')
        at++;
    return at;
}

/* skip_text returns the end of a quoted text; NULL if it does not end. */
static const char *skip_text(const char *at)
{
    for (at++; *at != '"'; at++) {
        if (*at == '\\')
            at++;
        if (*at == 0)
            return NULL;
    }
    return at + 1;
}

/* skip_word returns the end of a number, true, false or null; NULL if none or nothing follows. */
static const char *skip_word(const char *at)
{
    const char *from = at;

    while (*at != 0 && *at != ',' && *at != '}' && *at != ']')
        at++;
    return at == from || *at == 0 ? NULL : at;
}

/* skip_value returns the end of a value; NULL if it does not end. */
static const char *skip_value(const char *at)
{
    size_t depth = 0;

    do {
        if (*at == '"') {
            at = skip_text(at);
            if (at == NULL)
                return NULL;
            continue;
        }
        if (*at == '{' || *at == '[')
            depth++;
        else if (depth == 0)
            return skip_word(at);
        else if (*at == '}' || *at == ']')
            depth--;
        else if (*at == 0)
            return NULL;
        at++;
    } while (depth > 0);
    return at;
}

const char *shiva_member(const char *object, const char *key)
{
    const char *at = skip_blanks(object);

    while (at != NULL && (*at == '{' || *at == ',')) {
        const char *name = skip_blanks(at + 1), *end, *k = key;

        end = *name == '"' ? skip_text(name) : NULL;
        if (end == NULL)
            return NULL;
        for (name++; *k != 0 && *name == *k; name++)
            k++;
        at = skip_blanks(end);
        if (*at != ':')
            return NULL;
        at = skip_blanks(at + 1);
        if (*k == 0 && name + 1 == end)
            return skip_value(at) != NULL ? at : NULL;
        at = skip_value(at);
        if (at != NULL)
            at = skip_blanks(at);
    }
    return NULL;
}

/* read_hex returns the number that four hexadecimal digits are; UINT32_MAX if they are not. */
static uint32_t read_hex(const char *at)
{
    uint32_t value = 0;
    unsigned i;

    for (i = 0; i < 4; i++) {
        char c = at[i];

        if (c >= '0' && c <= '9')
            value = value << 4 | (uint32_t)(c - '0');
        else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
            value = value << 4 | (uint32_t)((c | ' ') - 'a' + 10);
        else
            return UINT32_MAX;
    }
    return value;
}

/* write_rune writes a character as UTF-8; half of a surrogate pair as the replacement character. */
static void write_rune(struct text *t, uint32_t rune)
{
    unsigned shift = rune < 0x80 ? 0 : rune < 0x800 ? 6 : rune < 0x10000 ? 12 : 18;

    if (rune >= 0xd800 && rune < 0xe000)
        rune = 0xfffd;
    if (shift == 0)
        write_char(t, (char)rune);
    else
        write_char(t, (char)((shift == 6 ? 0xc0u : shift == 12 ? 0xe0u : 0xf0u) | rune >> shift));
    while (shift > 0) {
        shift -= 6;
        write_char(t, (char)(0x80 | (rune >> shift & 0x3f)));
    }
}

/* read_escape writes what follows a backslash, and returns its end; NULL if it is no escape. */
static const char *read_escape(struct text *t, const char *at)
{
    static const char escapes[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    uint32_t rune;
    size_t i;

    for (i = 0; escapes[i] != 0; i += 2)
        if (*at == escapes[i]) {
            write_char(t, escapes[i + 1]);
            return at + 1;
        }
    rune = *at == 'u' ? read_hex(at + 1) : UINT32_MAX;
    if (rune == UINT32_MAX)
        return NULL;
    at += 5;
    if (rune >= 0xd800 && rune < 0xdc00 && at[0] == '\\' && at[1] == 'u') {
        uint32_t low = read_hex(at + 2);

        if (low >= 0xdc00 && low < 0xe000) {
            rune = 0x10000 + ((rune - 0xd800) << 10) + (low - 0xdc00);
            at += 6;
        }
    }
    write_rune(t, rune);
    return at;
}

enum shiva_status shiva_text(const char *object, const char *key, char *text, size_t room)
{
    const char *at = shiva_member(object, key);
    struct text t = {text, room, 0};

    if (room > 0)
        text[0] = 0;
    if (at == NULL || *at != '"')
        return SHIVA_ORDER;
    for (at++; at != NULL && *at != '"';)
        if (*at == '\\')
            at = read_escape(&t, at + 1);
        else
            write_char(&t, *at++);
    write_char(&t, 0);
    if (at != NULL && t.used <= room)
        return SHIVA_OK;
    if (room > 0)
        text[0] = 0;
    return at == NULL ? SHIVA_ORDER : SHIVA_LIMIT;
}

const char *shiva_explain(enum shiva_status status)
{
    switch (status) {
    case SHIVA_OK:
        return "success";
    case SHIVA_REFUSED:
        return "the server answered with an error, see its metadata";
    case SHIVA_IO:
        return "the transport failed or timed out";
    case SHIVA_CLOSED:
        return "the server closed the connection";
    case SHIVA_TRUNCATED:
        return "the server closed the connection inside an answer";
    case SHIVA_ORDER:
        return "a function was called out of order";
    case SHIVA_SHORT:
        return "fewer elements than the tensor's shape has, or part of an element";
    case SHIVA_LONG:
        return "more elements than the tensor's shape has, or more metadata than announced";
    case SHIVA_LIMIT:
        return "a limit of the wire format is exceeded, or a tensor has 4 GiB or more";
    case SHIVA_RANK:
        return "a tensor of the answer has more dimensions than there is room for";
    case SHIVA_MAGIC:
        return "the bytes received are not a Shiva answer";
    case SHIVA_CRC:
        return "a header's checksum is wrong";
    case SHIVA_NEGATIVE:
        return "a negative size or dimension";
    case SHIVA_DTYPE:
        return "unknown dtype";
    }
    return "unknown status";
}
