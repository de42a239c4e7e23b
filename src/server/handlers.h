/* handlers.h - one function for each route: parse, submit, answer. */
#ifndef THESPIS_SERVER_HANDLERS_H
#define THESPIS_SERVER_HANDLERS_H

#include <microhttpd.h>

struct th_exchange;

/* openai.c, batch.c */
enum MHD_Result th_handle_speech(struct th_exchange *x);
enum MHD_Result th_handle_outcome(struct th_exchange *x);
enum MHD_Result th_handle_batch(struct th_exchange *x);
enum MHD_Result th_handle_models(struct th_exchange *x);
enum MHD_Result th_handle_model(struct th_exchange *x);
/* fish.c */
enum MHD_Result th_handle_tts(struct th_exchange *x);
enum MHD_Result th_handle_reference_add(struct th_exchange *x);
enum MHD_Result th_handle_reference_list(struct th_exchange *x);
enum MHD_Result th_handle_reference_delete(struct th_exchange *x);
enum MHD_Result th_handle_reference_update(struct th_exchange *x);
/* voices.c */
enum MHD_Result th_handle_voices(struct th_exchange *x);
enum MHD_Result th_handle_voice_add(struct th_exchange *x);
enum MHD_Result th_handle_voice(struct th_exchange *x);
enum MHD_Result th_handle_voice_delete(struct th_exchange *x);
/* system.c, openapi.c */
enum MHD_Result th_handle_health(struct th_exchange *x);
enum MHD_Result th_handle_ready(struct th_exchange *x);
enum MHD_Result th_handle_fish_health(struct th_exchange *x);
enum MHD_Result th_handle_metrics(struct th_exchange *x);
enum MHD_Result th_handle_openapi(struct th_exchange *x);

#endif
