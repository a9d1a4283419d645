// What a warden answers, and what is answered for one that has ended: one JSON line.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "log.h"
#include "text.h"

namespace genie::warden {

struct Reply {
    std::string error;  // "" is success
    std::string state;
    bool alive = false;
    bool may_be_applied = false;
    Nanos ttl_end = 0;
    std::string log_error;           // why the log lacks events
    std::optional<std::string> log;  // whole lines; not in every reply

    std::string line() const {
        std::string text = std::string("{\"ok\":") + (error.empty() ? "true" : "false") + ",\"error\":";
        append_json(text, error);
        text += ",\"state\":";
        append_json(text, state);
        text += std::string(",\"alive\":") + (alive ? "true" : "false");
        text += std::string(",\"may_be_applied\":") + (may_be_applied ? "true" : "false");
        text += ",\"mono_ns\":" + std::to_string(mono_ns()) + ",\"real_ns\":" + std::to_string(real_ns());
        text += ",\"ttl_end_mono_ns\":" + std::to_string(ttl_end) + ",\"log_error\":";
        append_json(text, log_error);
        if (log) text += ",\"log\":" + log_as_array(*log);
        return text + "}\n";
    }
};

}  // namespace genie::warden
