/* voice_store.h - voices by name: a folder of voice files (voice_file.h) with the recordings beside them.
 *
 * A store has the user's own folder, which commands write, and perhaps a folder of built-in voices, which is only read and searched
 * second. Functions may be called from any thread and by several processes at a time: whoever writes holds a lock on the folder's
 * ".lock"; a voice appears, is replaced and vanishes with one rename or unlink of its voice file, so readers need no lock. */
#ifndef THESPIS_ENGINE_VOICE_STORE_H
#define THESPIS_ENGINE_VOICE_STORE_H

#include "engine/voice_file.h"
#include "thespis.h"

#define TH_VOICE_STORE_MAX 1000 /* voices in a folder */

struct th_voice_store {
    char *folder;  /* the user's; need not exist yet */
    char *builtin; /* read-only; NULL: none */
};

/* folder NULL: th_voice_default_folder. checkpoint NULL: no built-in voices, else they lie in its folder "voices". Makes no folder.
 */
thespis_status th_voice_store_open(const char *folder, const char *checkpoint, struct th_voice_store *store, thespis_error *error);
void th_voice_store_close(struct th_voice_store *store);
/* $THESPIS_VOICES, else $XDG_DATA_HOME/thespis/voices, else $HOME/.local/share/thespis/voices; freed with th_free. */
thespis_status th_voice_default_folder(char **folder, thespis_error *error);

/* The one grammar of names: blanks at both ends are dropped; then 1 to 255 of A-Z a-z 0-9 _ . - and the blank, among them a letter
 * or digit; "default" is reserved, and an end in ".safetensors" names a file. Letter case does not count: key gets the lower-case
 * form under which the voice is kept. The functions below apply it to the names they get, so that no name leaves the folder. */
thespis_status th_voice_name_check(const char *name, size_t bytes, char key[TH_VOICE_NAME_MAX + 1], thespis_error *error);

/* A reference to be stored: a recording (of at most 10 MiB, 0.5 to 60 seconds, not silent) or codes (.npy, JSON), told by content.
 */
struct th_voice_input {
    const char *path;  /* read when bytes is NULL; otherwise a name for messages, or NULL */
    const void *bytes; /* [count], or NULL */
    size_t count;
    const char *transcript; /* may be empty */
    size_t transcript_bytes;
};

/* What is known of a voice beside its references; each may be NULL. */
struct th_voice_facts {
    const char *language; /* a tag such as "en" or "pt-BR" */
    const char *description, *consent;
};

/* Encodes the inputs and stores them as one voice; the folder is made when it is not there. An engine opened with a codec alone
 * will do. Where a voice of this name is in the user's folder: without `replace` refused, with it replaced whole. *existed (may be
 * NULL) tells whether there was one, also when refused. */
thespis_status th_voice_store_add(const struct th_voice_store *store, thespis_engine *engine, const char *name,
                                  const struct th_voice_input *inputs, size_t count, const struct th_voice_facts *facts,
                                  int replace, int *existed, thespis_error *error);

/* Removes the voice and its recordings. */
thespis_status th_voice_store_remove(const struct th_voice_store *store, const char *name, thespis_error *error);

/* Gives a voice of the user's folder another name. *found, *taken tell why it failed: there is none, or the new name has one. */
thespis_status th_voice_store_rename(const struct th_voice_store *store, const char *from, const char *to, int *found, int *taken,
                                     thespis_error *error);

/* Is there such a voice, readable or not? *path (freed with th_free) is its file, or NULL. A bad name is a failure. */
thespis_status th_voice_store_find(const struct th_voice_store *store, const char *name, char **path, int *builtin,
                                   thespis_error *error);

/* Its voice as the engine needs it: as stored when the engine's codec made it, else encoded again from the recordings. */
thespis_status th_voice_store_load(const struct th_voice_store *store, thespis_engine *engine, const char *name,
                                   thespis_voice **voice, thespis_error *error);
/* The same of a voice file anywhere. */
thespis_status th_voice_load_file(const char *path, thespis_engine *engine, thespis_voice **voice, thespis_error *error);

struct th_voice_entry {
    char name[TH_VOICE_NAME_MAX + 1];
    int builtin;
    char *path;
    struct th_voice_file file; /* without codes; empty when there is a problem */
    thespis_error problem;     /* status THESPIS_OK: none */
};
/* What is stored under this name, without the codes; a damaged file is a failure. Freed with th_voice_entry_free. */
thespis_status th_voice_store_show(const struct th_voice_store *store, const char *name, struct th_voice_entry *entry,
                                   thespis_error *error);
void th_voice_entry_free(struct th_voice_entry *entry);

struct th_voice_list {
    struct th_voice_entry *entries; /* by name */
    size_t count, capacity;
};
/* All voices, a user's before the built-in one of the same name, which is left out; damaged ones with their problem. A folder that
 * is not there has none. */
thespis_status th_voice_store_list(const struct th_voice_store *store, struct th_voice_list *list, thespis_error *error);
void th_voice_list_free(struct th_voice_list *list);

#endif
