// The transport's own settings, as the program carries them: lines KEY=VALUE. A transport takes each by name
// with its limits, then says `done`: whatever is left over is an error, as is a key twice or a line without
// "=".
#pragma once

#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

#include "failure.h"

namespace genie {

class Settings {
  public:
    // Throws Failure (kProtocol), as do all below: settings are made by the controller, not by hand.
    Settings(std::string_view transport, std::string_view text) : transport_(transport) {
        while (!text.empty()) {
            const std::size_t end = text.find('\n');
            const std::string_view line = text.substr(0, end);
            text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
            const std::size_t at = line.find('=');
            if (at == 0 || at == std::string_view::npos)
                wrong("expected KEY=VALUE, found '" + std::string(line) + "'");
            const auto [_, made] = values_.emplace(line.substr(0, at), line.substr(at + 1));
            if (!made) wrong("'" + std::string(line.substr(0, at)) + "' is there twice");
        }
    }

    std::string text(std::string_view key) {
        const auto found = values_.find(key);
        if (found == values_.end()) wrong("'" + std::string(key) + "' is missing");
        std::string value = found->second;
        values_.erase(found);
        return value;
    }

    std::int64_t number(std::string_view key, std::int64_t least, std::int64_t most) {
        const std::string value = text(key);
        std::int64_t parsed = 0;
        const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
        if (error != std::errc{} || end != value.data() + value.size() || parsed < least || parsed > most) {
            wrong(std::string(key) + ": expected a number from " + std::to_string(least) + " to " +
                  std::to_string(most) + ", found '" + value + "'");
        }
        return parsed;
    }

    bool flag(std::string_view key) { return number(key, 0, 1) == 1; }

    // The place of the value among `words`.
    std::size_t word(std::string_view key, std::initializer_list<std::string_view> words) {
        const std::string value = text(key);
        std::string all;
        std::size_t at = 0;
        for (const std::string_view word : words) {
            if (word == value) return at;
            all += (at++ == 0 ? "" : ", ") + std::string(word);
        }
        wrong(std::string(key) + ": expected one of " + all + ", found '" + value + "'");
    }

    void done() const {
        if (!values_.empty()) wrong("'" + values_.begin()->first + "' is not one of its settings");
    }

  private:
    [[noreturn]] void wrong(const std::string& what) const {
        throw Failure(Code::kProtocol, "settings of transport " + transport_ + ": " + what);
    }

    const std::string transport_;
    std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace genie
