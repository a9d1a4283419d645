// Text of others, made fit to be shown: in JSON, and on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace genie::warden {

// As a JSON string; bytes that are no UTF-8 become U+FFFD.
void append_json(std::string& out, std::string_view text);

// On one line, whatever it holds: bytes that are no printable UTF-8 become \xNN.
std::string printable(std::string_view text);

}  // namespace genie::warden
