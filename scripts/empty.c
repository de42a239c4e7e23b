/* Keeps a room that has no source yet a library. */
typedef int th_empty;
