// Objects of JSON, as far as this program writes them: what `genie-agent-dl verbs list` says, and what a
// transport tells the run's record. Nothing here is on the hot path.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace genie {

// A string of JSON; control characters, which no name here has, are left out.
inline std::string json_text(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
    out += '"';
    return out;
}

// A list, of what `text` makes of each item.
template <class Items, class Text>
std::string json_list(const Items& items, const Text& text) {
    std::string out = "[";
    for (const auto& item : items) out.append(out.size() == 1 ? "" : ", ").append(text(item));
    out += ']';
    return out;
}

// An object, whose members keep their order.
class JsonObject {
  public:
    JsonObject& text(std::string_view name, std::string_view value) { return raw(name, json_text(value)); }
    JsonObject& number(std::string_view name, std::integral auto value) {
        return raw(name, std::to_string(value));
    }
    JsonObject& flag(std::string_view name, bool value) { return raw(name, value ? "true" : "false"); }
    JsonObject& none(std::string_view name) { return raw(name, "null"); }
    // A value that is JSON already.
    JsonObject& raw(std::string_view name, std::string_view value) {
        text_.append(text_.empty() ? "" : ", ").append(json_text(name)).append(": ").append(value);
        return *this;
    }
    std::string done() const { return std::string("{").append(text_).append("}"); }

  private:
    std::string text_;
};

}  // namespace genie
