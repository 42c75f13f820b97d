/*
 * For libFuzzer: a server sends any bytes, and a device reads them in any way; and metadata.
 *
 *     clang -std=c99 -g -O1 -fsanitize=fuzzer,address,undefined -o fuzz fuzz.c memory.c ../shiva.c
 */
#include "memory.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int good)
{
    if (!good)
        abort();
}

/* reads makes the device's calls as the first bytes select, while the other bytes arrive. */
static void reads(const uint8_t *data, size_t size)
{
    struct memory m;
    struct shiva s;
    struct shiva_answer answer;
    struct shiva_tensor tensor;
    uint32_t shape[4];
    unsigned char elements[64];
    char metadata[24];
    enum shiva_status status = SHIVA_OK;
    size_t i;

    if (size < STEPS)
        return;
    memory_init(&m, data + STEPS, size - STEPS, NULL, 0);
    m.piece = 1 + (size_t)data[0] % 17;
    shiva_init(&s, memory_transport(&m), NULL, 0);
    for (i = 0; status == SHIVA_OK || status == SHIVA_REFUSED; i++) {
        unsigned step = data[i % STEPS];

        status = shiva_answer(&s, &answer);
        while (status == SHIVA_OK && answer.tensors > 0 && (step & 1)) {
            answer.tensors--;
            status = shiva_next(&s, &tensor, shape, step & 2 ? 4 : 0);
            if (status != SHIVA_OK)
                break;
            must(tensor.rank <= 4 || !(step & 2));
            if ((step & 4) && tensor.bytes > 0) {
                size_t some = tensor.bytes < sizeof elements ? tensor.bytes : sizeof elements;

                status = shiva_read(&s, elements, some);
            }
        }
        if (status == SHIVA_OK) {
            status = shiva_finish(&s, metadata, step & 8 ? sizeof metadata : 1 + (step >> 4));
            must(strlen(metadata) < sizeof metadata);
        }
    }
    must(status != SHIVA_ORDER && status != SHIVA_SHORT && status != SHIVA_LONG);
    must(shiva_answer(&s, &answer) == status);
}

/* escaped reports whether JSON escapes characters of a text. */
static int escaped(const char *text)
{
    for (; *text != 0; text++)
        if ((unsigned char)*text < ' ' || *text == '"' || *text == '\\')
            return 1;
    return 0;
}

/* adds makes an object of any texts in any room, and finds the members again. */
static void adds(const uint8_t *data, size_t size)
{
    char key[16], text[64], object[96] = "{}";
    size_t room = size > 0 ? 3 + (size_t)data[0] % (sizeof object - 3) : sizeof object, n;

    n = size < sizeof key ? size : sizeof key - 1;
    memcpy(key, data, n);
    key[n] = 0;
    n = size < sizeof text ? size : sizeof text - 1;
    memcpy(text, data, n);
    text[n] = 0;
    /* At most five digits: {"n":12345} fits in 12 bytes. */
    must(shiva_add_number(object, room, "n", (int64_t)(size % 100000)) == SHIVA_OK || room < 12);
    if (shiva_add_text(object, room, key, text) == SHIVA_OK) {
        const char *found = shiva_member(object, key);

        must(found != NULL || escaped(key));
    }
    must(strlen(object) < room && object[strlen(object) - 1] == '}');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);

    must(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = 0;
    shiva_member(text, "a");
    shiva_member(text, "type");
    free(text);
    reads(data, size);
    adds(data, size);
    return 0;
}
