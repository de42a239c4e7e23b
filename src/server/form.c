/* form.c - multipart and URL-encoded forms as a tree, through libmicrohttpd's own parser. A field with a file name is BINARY. */
#include <microhttpd.h>
#include <string.h>

#include "base/memory.h"
#include "server/value.h"

#define MOST_FIELDS 64
#define BUFFER 4096

/* What is owned by the tree of a form. */
struct th_form {
    struct part {
        char *name;
        char *bytes;
        size_t count, capacity;
        int file;
    } part[MOST_FIELDS];
    size_t count;
    int failed; /* memory was short */
    int crowded;
};

void th_form_free(struct th_form *form)
{
    if (form == NULL) return;
    for (size_t i = 0; i < form->count; i++) {
        th_free(form->part[i].name);
        th_free(form->part[i].bytes);
    }
    th_free(form);
}

static enum MHD_Result new_part(struct th_form *form, const char *key, int file)
{
    if (form->count == MOST_FIELDS) {
        form->crowded = 1;
        return MHD_NO;
    }
    struct part *p = &form->part[form->count];
    p->name = th_copy_string(key, strlen(key));
    p->file = file;
    form->failed |= p->name == NULL;
    if (p->name == NULL) return MHD_NO;
    form->count++;
    return MHD_YES;
}

/* A piece of a field; offset 0 begins one. */
static enum MHD_Result take_piece(void *context, enum MHD_ValueKind kind, const char *key, const char *filename, const char *type,
                                  const char *encoding, const char *data, uint64_t offset, size_t size)
{
    struct th_form *form = context;
    (void)kind;
    (void)type;
    (void)encoding;
    if (key == NULL) return MHD_YES;
    if (offset == 0 && new_part(form, key, filename != NULL) != MHD_YES) return MHD_NO;
    if (form->count == 0) return MHD_NO;
    struct part *p = &form->part[form->count - 1];
    if (p->count + size > p->capacity) {
        size_t room = (p->count + size) * 2;
        char *grown = th_realloc(p->bytes, p->count, room, 1);
        form->failed |= grown == NULL;
        if (grown == NULL) return MHD_NO;
        p->bytes = grown;
        p->capacity = room;
    }
    if (size > 0) memcpy(p->bytes + p->count, data, size);
    p->count += size;
    return MHD_YES;
}

static thespis_status no_memory(struct th_fault *fault)
{
    thespis_error error;
    th_fail_memory(&error, "a form", sizeof(struct th_form));
    return th_fault_from(fault, &error, "", NULL);
}

static thespis_status make_map(struct th_form *form, struct th_value *map, struct th_fault *fault)
{
    map->kind = TH_MAP;
    map->items = th_alloc(form->count, sizeof *map->items);
    map->keys = th_alloc(form->count, sizeof *map->keys);
    if (map->items == NULL || map->keys == NULL) return no_memory(fault);
    map->count = form->count;
    for (size_t i = 0; i < form->count; i++) {
        struct part *p = &form->part[i];
        map->keys[i] = (struct th_value){.kind = TH_TEXT, .text = p->name, .count = strlen(p->name)};
        map->items[i] =
            (struct th_value){.kind = p->file ? TH_BINARY : TH_TEXT, .text = p->bytes != NULL ? p->bytes : "", .count = p->count};
    }
    return THESPIS_OK;
}

thespis_status th_tree_form(struct MHD_Connection *connection, const char *bytes, size_t count, struct th_tree *tree,
                            struct th_fault *fault)
{
    memset(tree, 0, sizeof *tree);
    tree->is_form = 1;
    tree->form = th_alloc(1, sizeof *tree->form);
    if (tree->form == NULL) return no_memory(fault);
    struct MHD_PostProcessor *parser = MHD_create_post_processor(connection, BUFFER, take_piece, tree->form);
    if (parser == NULL) return th_fault_set(fault, 400, NULL, "the form's Content-Type has no usable boundary");
    enum MHD_Result taken = count > 0 ? MHD_post_process(parser, bytes, count) : MHD_YES;
    enum MHD_Result ended = MHD_destroy_post_processor(parser);
    if (tree->form->failed) return no_memory(fault);
    if (tree->form->crowded) return th_fault_set(fault, 400, NULL, "the form has more than %d fields", MOST_FIELDS);
    if (taken != MHD_YES || ended != MHD_YES) return th_fault_set(fault, 400, NULL, "the form is broken or cut off");
    return make_map(tree->form, &tree->root, fault);
}
