#include "spec.h"

#include <algorithm>
#include <charconv>

#include "failure.h"

namespace genie::warden {
namespace {

constexpr std::size_t kMostNameBytes = 96;  // two of them are part of a systemd unit's name
constexpr std::size_t kMostMessage = 300;
constexpr std::size_t kMostWords = 512;
constexpr std::size_t kMostCommands = 4096;
constexpr Nanos kLongest = 7 * 24 * 3600 * kSecond;
constexpr Nanos kLeastTtl = 10 * kMillisecond;
constexpr Nanos kLeastPeriod = 10 * kMillisecond;

class Line {
  public:
    Line(std::string_view text, std::size_t number) : number_(number) {
        std::string field;
        for (std::size_t at = 0; at < text.size(); at++) {
            if (text[at] == '\0') fail("a NUL byte");
            if (text[at] == '\t') {
                fields_.push_back(std::move(field));
                field.clear();
            } else if (text[at] == '\\') {
                field += unescape(++at < text.size() ? text[at] : '\0');
            } else {
                field += text[at];
            }
        }
        fields_.push_back(std::move(field));
    }

    const std::string& key() const { return fields_.front(); }
    std::size_t size() const { return fields_.size() - 1; }

    void expect(std::size_t count) const {
        if (size() != count)
            fail("expected " + std::to_string(count) + " fields after '" + key() + "', found " +
                 std::to_string(size()));
    }

    const std::string& field(std::size_t index) const { return fields_.at(index); }

    std::string name() const {
        expect(1);
        const auto& text = fields_[1];
        const bool known = std::all_of(text.begin(), text.end(), [](char c) {
            return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                   c == '_' || c == '-';
        });
        if (text.empty() || text.size() > kMostNameBytes || !known || text.front() == '-' ||
            text.front() == '.')
            fail("'" + key() + "' is a name of 1 to " + std::to_string(kMostNameBytes) +
                 " letters, digits, '.', '_', '-' that starts with none of '.' and '-'");
        return text;
    }

    Nanos nanos(std::size_t index, Nanos least) const {
        const auto& text = fields_.at(index);
        Nanos value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool digits = !text.empty() && text.front() >= '0' && text.front() <= '9';
        if (!digits || error != std::errc{} || end != text.data() + text.size())
            fail("expected nanoseconds, found '" + text + "'");
        if (value < least || value > kLongest)
            fail("expected " + std::to_string(least) + " to " + std::to_string(kLongest) + " ns, found " +
                 text);
        return value;
    }

    Argv argv() const {
        if (size() == 0 || fields_[1].empty()) fail("'" + key() + "' has no program");
        if (size() > kMostWords) fail("a command has at most " + std::to_string(kMostWords) + " words");
        return Argv(fields_.begin() + 1, fields_.end());
    }

    [[noreturn]] void fail(std::string what) const {
        if (what.size() > kMostMessage) what.replace(kMostMessage, std::string::npos, "...");
        throw Failure("spec, line " + std::to_string(number_) + ": " + what);
    }

  private:
    char unescape(char escaped) const {
        if (escaped == 't') return '\t';
        if (escaped == 'n') return '\n';
        if (escaped == '\\') return '\\';
        fail("after a backslash only 't', 'n' and a backslash");
    }

    std::size_t number_;
    std::vector<std::string> fields_;
};

Window parse_window(const Line& line) {
    if (line.size() == 0) line.fail("'window' without a kind");
    const std::string& kind = line.field(1);
    Window window;
    if (kind == "whole" || kind == "told") {
        line.expect(1);
        window.kind = kind == "whole" ? WindowKind::kWhole : WindowKind::kTold;
    } else if (kind == "timed") {
        line.expect(3);
        window.kind = WindowKind::kTimed;
        window.at = line.nanos(2, 0);
        window.length = line.nanos(3, 0);
    } else if (kind == "periodic") {
        line.expect(5);
        window.kind = WindowKind::kPeriodic;
        window.at = line.nanos(2, 0);
        window.period = line.nanos(3, kLeastPeriod);
        window.open = line.nanos(4, 1);
        window.length = line.nanos(5, 0);
        if (window.open >= window.period) line.fail("a periodic window is open for less than its period");
    } else {
        line.fail("a window is whole, timed, periodic or told, not '" + kind + "'");
    }
    return window;
}

void set_once(const Line& line, std::string& value) {
    if (!value.empty()) line.fail("'" + line.key() + "' is given twice");
    value = line.name();
}

void add(const Line& line, std::vector<Argv>& commands) {
    if (commands.size() == kMostCommands)
        line.fail("more than " + std::to_string(kMostCommands) + " '" + line.key() + "'");
    commands.push_back(line.argv());
}

}  // namespace

Spec parse_spec(std::string_view text) {
    if (text.size() > kMostSpecBytes)
        throw Failure("spec: longer than " + std::to_string(kMostSpecBytes) + " bytes");
    Spec spec;
    bool whole = false;
    std::size_t number = 0;
    while (!text.empty()) {
        const auto end = text.find('\n');
        if (end == std::string_view::npos) throw Failure("spec: the last line is cut short");
        const Line line(text.substr(0, end), ++number);
        text.remove_prefix(end + 1);
        if (whole) line.fail("'window' is the last record, something follows it");
        if (line.key() == "run") {
            set_once(line, spec.run);
        } else if (line.key() == "fault") {
            set_once(line, spec.fault);
        } else if (line.key() == "ttl_ns") {
            if (spec.ttl != 0) line.fail("'ttl_ns' is given twice");
            line.expect(1);
            spec.ttl = line.nanos(1, kLeastTtl);
        } else if (line.key() == "do") {
            add(line, spec.apply);
        } else if (line.key() == "later") {
            add(line, spec.later);
        } else if (line.key() == "later_after_ns") {
            if (spec.later_after != 0) line.fail("'later_after_ns' is given twice");
            line.expect(1);
            spec.later_after = line.nanos(1, 1);
        } else if (line.key() == "undo") {
            add(line, spec.undo);
        } else if (line.key() == "check") {
            add(line, spec.check);
        } else if (line.key() == "window") {
            spec.window = parse_window(line);
            whole = true;
        } else {
            line.fail("no record '" + line.key() + "'");
        }
    }
    if (!whole) throw Failure("spec: ends without a 'window': was it cut short?");
    if (spec.run.empty()) throw Failure("spec: no 'run'");
    if (spec.fault.empty()) throw Failure("spec: no 'fault'");
    if (spec.ttl == 0) throw Failure("spec: no 'ttl_ns'");
    if (spec.undo.empty()) throw Failure("spec: no 'undo'");
    if (spec.later.empty() != (spec.later_after == 0))
        throw Failure("spec: 'later' and 'later_after_ns' go together");
    if (spec.window.kind != WindowKind::kWhole && spec.apply.empty())
        throw Failure("spec: no 'do', which only a whole window can be without");
    return spec;
}

std::int64_t window_count(const Window& window) {
    if (window.kind == WindowKind::kTimed) return 1;
    return window.length == 0 ? 0 : (window.length + window.period - 1) / window.period;
}

std::optional<Edges> next_window(const Window& window, Nanos origin, std::int64_t from, Nanos now) {
    const Nanos first = origin + window.at;
    if (window.kind == WindowKind::kTimed) {
        const Nanos closes = window.length == 0 ? 0 : first + window.length;
        if (from > 0 || (closes != 0 && closes <= now)) return std::nullopt;
        return Edges{0, first, closes};
    }
    std::int64_t index = from;
    if (now - first >= window.open) index = std::max(index, (now - first - window.open) / window.period + 1);
    const std::int64_t count = window_count(window);
    if (count != 0 && index >= count) return std::nullopt;
    Edges edges{index, first + index * window.period, 0};
    edges.closes = edges.opens + window.open;
    if (window.length != 0) edges.closes = std::min(edges.closes, first + window.length);
    if (edges.closes <= now) return std::nullopt;
    return edges;
}

}  // namespace genie::warden
