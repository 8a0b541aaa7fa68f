/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One function a family of templates, written from what the families' formats are. Each is held
 * byte-equal to what Jinja renders (tests/tools/make_templates_golden.py names the sources).
 */
#include "model/chat_internal.h"
#include "model/unicode_form.h"

#include <stdio.h>
#include <string.h>

/* --- Writing -------------------------------------------------------------------------------- */

static mr_status put(mr_chat_rendered *out, const char *text)
{
    return mr_buffer_append(&out->text, text, strlen(text));
}

static mr_status put_bytes(mr_chat_rendered *out, mr_bytes text)
{
    return mr_buffer_append(&out->text, text.data, text.size);
}

/* Text that came from a message. */
static mr_status put_plain(mr_chat_rendered *out, mr_bytes text)
{
    if (text.size == 0) {
        return MR_OK;
    }
    const size_t begin = out->text.size;
    MR_TRY(mr_buffer_append(&out->text, text.data, text.size));
    out->plain[out->n_plain++] = (mr_text_span){.begin = begin, .end = out->text.size};
    return MR_OK;
}

/* What the template itself would have raised. */
static mr_status raise(size_t index, const char *message, mr_error *err)
{
    char field[MR_ERROR_FIELD_MAX];
    (void)snprintf(field, sizeof(field), "messages[%zu].role", index);
    return mr_fail_field(err, MR_INVALID_ARGUMENT, field, "the chat template refuses: %s", message);
}

/* --- Text ----------------------------------------------------------------------------------- */

/* White space as Python's str.strip() has it. */
static bool is_blank(int32_t point)
{
    return (point >= 0x1C && point <= 0x1F) || mr_unicode_is_space(point);
}

static mr_bytes strip(mr_bytes text)
{
    size_t begin = 0;
    size_t end = text.size;
    size_t next;
    while (begin < end && is_blank(mr_unicode_read(text.data, begin, &next))) {
        begin = next;
    }
    while (end > begin) {
        size_t at = end - 1;
        while (at > begin && (text.data[at] & 0xC0) == 0x80) {
            at--;
        }
        if (!is_blank(mr_unicode_read(text.data, at, &next))) {
            break;
        }
        end = at;
    }
    return (mr_bytes){.data = text.data + begin, .size = end - begin};
}

static mr_bytes strip_lines_before(mr_bytes text)
{
    while (text.size > 0 && text.data[0] == '\n') {
        text.data++;
        text.size--;
    }
    return text;
}

static mr_bytes strip_lines_behind(mr_bytes text)
{
    while (text.size > 0 && text.data[text.size - 1] == '\n') {
        text.size--;
    }
    return text;
}

static bool begins_with(mr_bytes text, const char *part)
{
    const size_t bytes = strlen(part);
    return text.size >= bytes && memcmp(text.data, part, bytes) == 0;
}

static bool ends_with(mr_bytes text, const char *part)
{
    const size_t bytes = strlen(part);
    return text.size >= bytes && memcmp(text.data + text.size - bytes, part, bytes) == 0;
}

static bool find_first(mr_bytes text, const char *part, size_t *at)
{
    const uint8_t *found = text.size > 0 ? memmem(text.data, text.size, part, strlen(part)) : NULL;
    *at = found != NULL ? (size_t)(found - text.data) : 0;
    return found != NULL;
}

/* What is behind the last `part`, all of the text if there is none. */
static mr_bytes behind_last(mr_bytes text, const char *part)
{
    size_t at;
    while (find_first(text, part, &at)) {
        text.data += at + strlen(part);
        text.size -= at + strlen(part);
    }
    return text;
}

/* --- ChatML --------------------------------------------------------------------------------- */

static mr_status chatml_turn(mr_chat_rendered *out, mr_bytes role, mr_bytes content)
{
    MR_TRY(put(out, "<|im_start|>"));
    MR_TRY(put_plain(out, role));
    MR_TRY(put(out, "\n"));
    MR_TRY(put_plain(out, content));
    return put(out, "<|im_end|>\n");
}

static mr_status chatml_open(const mr_chat_input *in, mr_chat_rendered *out)
{
    return in->open_assistant ? put(out, "<|im_start|>assistant\n") : MR_OK;
}

/* Roles are not looked at. */
static mr_status chatml(const mr_chat_input *in, mr_chat_rendered *out)
{
    for (size_t i = 0; i < in->count; i++) {
        MR_TRY(chatml_turn(out, in->messages[i].role, in->messages[i].content));
    }
    return chatml_open(in, out);
}

static mr_status render_chatml(const mr_chat_input *in, mr_chat_rendered *out, mr_error *err)
{
    (void)err;
    return chatml(in, out);
}

/* A conversation that does not begin with a system turn gets the default one. */
static mr_status render_smollm2(const mr_chat_input *in, mr_chat_rendered *out, mr_error *err)
{
    (void)err;
    if (!mr_bytes_is(in->messages[0].role, "system")) {
        MR_TRY(put(out, "<|im_start|>system\n"
                        "You are a helpful AI assistant named SmolLM, trained by Hugging "
                        "Face<|im_end|>\n"));
    }
    return chatml(in, out);
}

static mr_status render_qwen2(const mr_chat_input *in, mr_chat_rendered *out, mr_error *err)
{
    (void)err;
    if (!mr_bytes_is(in->messages[0].role, "system")) {
        MR_TRY(put(out, "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"));
    }
    return chatml(in, out);
}

/* Neighbouring tool results are one turn of the user. */
static mr_status qwen_tool(const mr_chat_input *in, size_t i, mr_chat_rendered *out)
{
    if (i == 0 || !mr_bytes_is(in->messages[i - 1].role, "tool")) {
        MR_TRY(put(out, "<|im_start|>user"));
    }
    MR_TRY(put(out, "\n<tool_response>\n"));
    MR_TRY(put_plain(out, in->messages[i].content));
    MR_TRY(put(out, "\n</tool_response>"));
    const bool last = i + 1 == in->count || !mr_bytes_is(in->messages[i + 1].role, "tool");
    return last ? put(out, "<|im_end|>\n") : MR_OK;
}

/* Other roles than these four are left out. */
static mr_status render_qwen25(const mr_chat_input *in, mr_chat_rendered *out, mr_error *err)
{
    (void)err;
    if (!mr_bytes_is(in->messages[0].role, "system")) {
        MR_TRY(put(out, "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a "
                        "helpful assistant.<|im_end|>\n"));
    }
    for (size_t i = 0; i < in->count; i++) {
        const mr_bytes role = in->messages[i].role;
        if (mr_bytes_is(role, "user") || mr_bytes_is(role, "system") ||
            mr_bytes_is(role, "assistant")) {
            MR_TRY(chatml_turn(out, role, in->messages[i].content));
        } else if (mr_bytes_is(role, "tool")) {
            MR_TRY(qwen_tool(in, i, out));
        }
    }
    return chatml_open(in, out);
}

/* The last turn of the user that is no tool's result; the last message if there is none. */
static size_t qwen3_last_query(const mr_chat_input *in)
{
    for (size_t i = in->count; i-- > 0;) {
        const mr_bytes content = in->messages[i].content;
        const bool result =
            begins_with(content, "<tool_response>") && ends_with(content, "</tool_response>");
        if (mr_bytes_is(in->messages[i].role, "user") && !result) {
            return i;
        }
    }
    return in->count - 1;
}

/* What was thought is shown only behind the last query. */
static mr_status qwen3_assistant(const mr_chat_input *in, size_t i, size_t last_query,
                                 mr_chat_rendered *out)
{
    mr_bytes content = in->messages[i].content;
    mr_bytes thought = {.data = content.data, .size = 0};
    size_t at;
    if (find_first(content, "</think>", &at)) {
        thought = strip_lines_behind((mr_bytes){.data = content.data, .size = at});
        thought = strip_lines_before(behind_last(thought, "<think>"));
        content = strip_lines_before(behind_last(content, "</think>"));
    }
    MR_TRY(put(out, "<|im_start|>"));
    MR_TRY(put_plain(out, in->messages[i].role));
    MR_TRY(put(out, "\n"));
    if (i > last_query && (i + 1 == in->count || thought.size > 0)) {
        MR_TRY(put(out, "<think>\n"));
        MR_TRY(put_plain(out, strip_lines_behind(thought)));
        MR_TRY(put(out, "\n</think>\n\n"));
        content = strip_lines_before(content);
    }
    MR_TRY(put_plain(out, content));
    return put(out, "<|im_end|>\n");
}

static mr_status render_qwen3(const mr_chat_input *in, mr_chat_rendered *out, mr_error *err)
{
    (void)err;
    const size_t last_query = qwen3_last_query(in);
    for (size_t i = 0; i < in->count; i++) {
        const mr_bytes role = in->messages[i].role;
        if (mr_bytes_is(role, "user") || mr_bytes_is(role, "system")) {
            MR_TRY(chatml_turn(out, role, in->messages[i].content));
        } else if (mr_bytes_is(role, "assistant")) {
            MR_TRY(qwen3_assistant(in, i, last_query, out));
        } else if (mr_bytes_is(role, "tool")) {
            MR_TRY(qwen_tool(in, i, out));
        }
    }
    return chatml_open(in, out);
}

/* --- Llama 3 -------------------------------------------------------------------------------- */

static mr_status llama3_turn(mr_chat_rendered *out, const mr_chat_message *message)
{
    MR_TRY(put(out, "<|start_header_id|>"));
    MR_TRY(put_plain(out, message->role));
    MR_TRY(put(out, "<|end_header_id|>\n\n"));
    MR_TRY(put_plain(out, strip(message->content)));
    return put(out, "<|eot_id|>");
}

static mr_status llama3_turns(const mr_chat_input *in, size_t first, mr_chat_rendered *out)
{
    for (size_t i = first; i < in->count; i++) {
        MR_TRY(llama3_turn(out, &in->messages[i]));
    }
    return in->open_assistant ? put(out, "<|start_header_id|>assistant<|end_header_id|>\n\n")
                              : MR_OK;
}

static mr_status render_llama3(const mr_chat_input *in, mr_chat_rendered *out, mr_error *err)
{
    (void)err;
    MR_TRY(put_bytes(out, in->bos));
    return llama3_turns(in, 0, out);
}

/* Every conversation has a system turn that tells dates; both are the template's own. */
static mr_status render_llama31(const mr_chat_input *in, mr_chat_rendered *out, mr_error *err)
{
    const size_t first = mr_bytes_is(in->messages[0].role, "system") ? 1 : 0;
    for (size_t i = first; i < in->count; i++) {
        if (mr_bytes_is(in->messages[i].role, "tool") ||
            mr_bytes_is(in->messages[i].role, "ipython")) {
            return raise(i, "this build renders no tools for it", err);
        }
    }
    MR_TRY(put_bytes(out, in->bos));
    MR_TRY(put(out, "<|start_header_id|>system<|end_header_id|>\n\n"
                    "Cutting Knowledge Date: December 2023\n"
                    "Today Date: 26 Jul 2024\n\n"));
    if (first == 1) {
        MR_TRY(put_plain(out, strip(in->messages[0].content)));
    }
    MR_TRY(put(out, "<|eot_id|>"));
    return llama3_turns(in, first, out);
}

/* --- Mistral -------------------------------------------------------------------------------- */

static const char alternate[] =
    "Conversation roles must alternate user/assistant/user/assistant/...";

/* Turns before v3: no system turn, no opening of the assistant's. */
static mr_status mistral_turns(const mr_chat_input *in, const char *behind, mr_chat_rendered *out,
                               mr_error *err)
{
    MR_TRY(put_bytes(out, in->bos));
    for (size_t i = 0; i < in->count; i++) {
        const mr_chat_message *message = &in->messages[i];
        if (mr_bytes_is(message->role, "user") != (i % 2 == 0)) {
            return raise(i, alternate, err);
        }
        if (mr_bytes_is(message->role, "user")) {
            MR_TRY(put(out, "[INST] "));
            MR_TRY(put_plain(out, message->content));
            MR_TRY(put(out, " [/INST]"));
        } else if (mr_bytes_is(message->role, "assistant")) {
            MR_TRY(put_plain(out, message->content));
            MR_TRY(put_bytes(out, in->eos));
            MR_TRY(put(out, behind));
        } else {
            return raise(i, "Only user and assistant roles are supported!", err);
        }
    }
    return MR_OK;
}

static mr_status render_mistral(const mr_chat_input *in, mr_chat_rendered *out, mr_error *err)
{
    return mistral_turns(in, " ", out, err);
}

static mr_status render_mixtral(const mr_chat_input *in, mr_chat_rendered *out, mr_error *err)
{
    return mistral_turns(in, "", out, err);
}

static bool nemo_is_tool(mr_bytes role)
{
    return mr_bytes_is(role, "tool") || mr_bytes_is(role, "tool_results");
}

static mr_status nemo_turn(const mr_chat_input *in, size_t i, const mr_chat_message *system,
                           mr_chat_rendered *out, mr_error *err)
{
    const mr_chat_message *message = &in->messages[i];
    if (mr_bytes_is(message->role, "user")) {
        MR_TRY(put(out, "[INST]"));
        if (system != NULL && i + 1 == in->count) {
            MR_TRY(put_plain(out, system->content));
            MR_TRY(put(out, "\n\n"));
        }
        MR_TRY(put_plain(out, message->content));
        return put(out, "[/INST]");
    }
    if (mr_bytes_is(message->role, "assistant")) {
        MR_TRY(put_plain(out, message->content));
        return put_bytes(out, in->eos);
    }
    return raise(i,
                 nemo_is_tool(message->role)
                     ? "Tool call IDs should be alphanumeric strings with length 9!"
                     : "Only user and assistant roles are supported, with the exception of an "
                       "initial optional system message!",
                 err);
}

/* What the system turn says goes into the last turn, if that is the user's. */
static mr_status render_nemo(const mr_chat_input *in, mr_chat_rendered *out, mr_error *err)
{
    const mr_chat_message *system =
        mr_bytes_is(in->messages[0].role, "system") ? in->messages : NULL;
    const size_t first = system != NULL ? 1 : 0;
    size_t turns = 0;
    for (size_t i = first; i < in->count; i++) {
        const mr_bytes role = in->messages[i].role;
        if (!nemo_is_tool(role) && mr_bytes_is(role, "user") != (turns++ % 2 == 0)) {
            return raise(i,
                         "After the optional system message, conversation roles must alternate "
                         "user/assistant/user/assistant/...",
                         err);
        }
    }
    MR_TRY(put_bytes(out, in->bos));
    for (size_t i = first; i < in->count; i++) {
        MR_TRY(nemo_turn(in, i, system, out, err));
    }
    return MR_OK;
}

/* --- Phi-3 ---------------------------------------------------------------------------------- */

static mr_status phi3_turns(const mr_chat_input *in, bool skip_empty_system, mr_chat_rendered *out)
{
    static const struct {
        const char *role;
        const char *head;
    } heads[] = {
        {"system", "<|system|>\n"}, {"user", "<|user|>\n"}, {"assistant", "<|assistant|>\n"}};
    for (size_t i = 0; i < in->count; i++) {
        const mr_chat_message *message = &in->messages[i];
        if (skip_empty_system && mr_bytes_is(message->role, "system") &&
            message->content.size == 0) {
            continue;
        }
        for (size_t h = 0; h < sizeof(heads) / sizeof(heads[0]); h++) {
            if (mr_bytes_is(message->role, heads[h].role)) {
                MR_TRY(put(out, heads[h].head));
                MR_TRY(put_plain(out, message->content));
                MR_TRY(put(out, "<|end|>\n"));
            }
        }
    }
    return in->open_assistant ? put(out, "<|assistant|>\n") : MR_OK;
}

static mr_status render_phi3(const mr_chat_input *in, mr_chat_rendered *out, mr_error *err)
{
    (void)err;
    MR_TRY(phi3_turns(in, false, out));
    return in->open_assistant ? MR_OK : put(out, "<|endoftext|>");
}

static mr_status render_phi35(const mr_chat_input *in, mr_chat_rendered *out, mr_error *err)
{
    (void)err;
    MR_TRY(phi3_turns(in, true, out));
    return in->open_assistant ? MR_OK : put_bytes(out, in->eos);
}

/* --- Gemma ---------------------------------------------------------------------------------- */

static mr_status render_gemma2(const mr_chat_input *in, mr_chat_rendered *out, mr_error *err)
{
    static const mr_bytes model = {.data = (const uint8_t *)"model", .size = 5};
    MR_TRY(put_bytes(out, in->bos));
    if (mr_bytes_is(in->messages[0].role, "system")) {
        return raise(0, "System role not supported", err);
    }
    for (size_t i = 0; i < in->count; i++) {
        const mr_chat_message *message = &in->messages[i];
        if (mr_bytes_is(message->role, "user") != (i % 2 == 0)) {
            return raise(i, alternate, err);
        }
        MR_TRY(put(out, "<start_of_turn>"));
        MR_TRY(mr_bytes_is(message->role, "assistant") ? put_bytes(out, model)
                                                       : put_plain(out, message->role));
        MR_TRY(put(out, "\n"));
        MR_TRY(put_plain(out, strip(message->content)));
        MR_TRY(put(out, "<end_of_turn>\n"));
    }
    return in->open_assistant ? put(out, "<start_of_turn>model\n") : MR_OK;
}

/* --- The table ------------------------------------------------------------------------------ */

static const mr_chat_known known[] = {
    {"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788", "SmolLM2-Instruct",
     render_smollm2},
    {"153280e3ff55d19da1398bdb3914ee2a51b80429bfaedde11d7d216c39db80f3", "ChatML", render_chatml},
    {"793202280c0910ab26bc6eb57c8212c2417324c6d8c4efd0d10d59092ab3e3eb", "Qwen2-Instruct",
     render_qwen2},
    {"55b2f4a26ac9ee719330a61a0c39d9e538b0e9322212f048326318cff4f8674a", "Qwen2.5-Instruct",
     render_qwen25},
    {"87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5", "Qwen3", render_qwen3},
    {"13e4d4e5d0161c2d6625008905857c049f60f2ebbacf1ba2796cec9daf11c483", "Qwen3, later text",
     render_qwen3},
    {"ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122", "Llama 3 Instruct",
     render_llama3},
    {"93c0e9aa3629bbd77e68dbc0f5621f6e6b23aa8d74b932595cdb8d64684526d7",
     "Llama 3.1 and 3.3 Instruct", render_llama31},
    {"7e995b379ec01747807246483647cd99030abf331653f1119e16d7ac041a3495", "Mistral 7B Instruct v0.1",
     render_mistral},
    {"26a59556925c987317ce5291811ba3b7f32ec4c647c400c6cc7e3a9993007ba7",
     "Mixtral 8x7B Instruct v0.1", render_mixtral},
    {"e7deee034838db2bfc7487788a3013d8a307ab69f72f3c54a85f06fd76007d4e", "Mistral Nemo Instruct",
     render_nemo},
    {"93d7bfd74b1ee92c7380c3762a35793967cc30bf341cc51ddea5a74bea687f27", "Phi-3 mini instruct",
     render_phi3},
    {"78d976a442bcde2f0be15aafbb8e3050e1104f86732266f68403251b89982a90", "Phi-3.5 mini instruct",
     render_phi35},
    {"ecd6ae513fe103f0eb62e8ab5bfa8d0fe45c1074fa398b089c93a7e70c15cfd6", "Gemma 2 it",
     render_gemma2},
};

const mr_chat_known *mr_chat_known_at(size_t index)
{
    return index < sizeof(known) / sizeof(known[0]) ? &known[index] : NULL;
}
