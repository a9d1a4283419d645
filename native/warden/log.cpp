#include "log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>

#include "failure.h"
#include "home.h"
#include "text.h"

namespace genie::warden {
namespace {

constexpr const char* kName = "log";

// The value of `key` in a line of our own, as written; "" if it is not there.
std::string_view raw_value(std::string_view line, std::string_view key) {
    std::string wanted = "\"";
    wanted.append(key).append("\":");
    const auto at = line.find(wanted);
    if (at == std::string_view::npos) return {};
    line.remove_prefix(at + wanted.size());
    if (!line.empty() && line.front() == '"') {
        line.remove_prefix(1);
        return line.substr(0, line.find('"'));
    }
    return line.substr(0, line.find_first_of(",}"));
}

std::int64_t number_value(std::string_view line, std::string_view key, std::int64_t otherwise) {
    const auto text = raw_value(line, key);
    std::int64_t value = otherwise;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
}

}  // namespace

Event::Event(std::string_view name) {
    text_ = "{\"mono_ns\":" + std::to_string(mono_ns()) + ",\"real_ns\":" + std::to_string(real_ns());
    add("event", name);
}

void Event::key(std::string_view name) {
    text_ += ",\"";
    text_ += name;
    text_ += "\":";
}

Event& Event::add(std::string_view name, std::int64_t value) {
    key(name);
    text_ += std::to_string(value);
    return *this;
}

Event& Event::add(std::string_view name, std::string_view value) {
    key(name);
    append_json(text_, value);
    return *this;
}

Event& Event::flag(std::string_view name, bool value) {
    key(name);
    text_ += value ? "true" : "false";
    return *this;
}

Event& Event::add(std::string_view name, const Argv& words) {
    key(name);
    char before = '[';
    for (const auto& word : words) {
        text_ += before;
        append_json(text_, word);
        before = ',';
    }
    text_ += words.empty() ? "[]" : "]";
    return *this;
}

Log Log::create(int folder) {
    if (::renameat(folder, kName, folder, "log.before") != 0 && errno != ENOENT)
        fail_errno("keep the earlier log");
    Descriptor file(
        ::openat(folder, kName, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid()) fail_errno("create log");
    return Log(std::move(file), 0);
}

Log Log::open(int folder) {
    Descriptor file(::openat(folder, kName, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW));
    if (!file.valid()) fail_errno("open log");
    const auto size = static_cast<std::int64_t>(read_log(folder).size());
    if (::ftruncate(file.get(), size) != 0) fail_errno("cut a torn line off log");
    return Log(std::move(file), size);
}

void Log::append(const Event& event, Durable durable) {
    const std::string line = event.line();
    try {
        write_all(file_.get(), line, "write log");
        if (durable == Durable::kYes && ::fsync(file_.get()) != 0) fail_errno("fsync log");
    } catch (const Failure&) {
        // What was written of the line would run into the next one.
        if (::ftruncate(file_.get(), size_) != 0) throw Failure("log is torn and cannot be mended");
        throw;
    }
    size_ += static_cast<std::int64_t>(line.size());
}

std::string read_log(int folder) {
    std::string text = read_file(folder, kName, SIZE_MAX);
    text.resize(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
    return text;
}

std::string log_as_array(std::string_view lines) {
    std::string array = "[";
    while (!lines.empty()) {
        const auto end = lines.find('\n');
        if (array.size() > 1) array += ',';
        array += lines.substr(0, end);
        lines.remove_prefix(end + 1);
    }
    return array + "]";
}

Facts read_facts(std::string_view lines) {
    Facts facts;
    bool fired = false, do_failed = false;
    while (!lines.empty()) {
        const auto end = lines.find('\n');
        const auto line = lines.substr(0, end);
        lines.remove_prefix(end + 1);
        const auto event = raw_value(line, "event");
        if (event == "armed") {
            facts.state = "armed";
            facts.pid = number_value(line, "pid", 0);
            facts.ttl_end = number_value(line, "ttl_end_mono_ns", 0);
            facts.network = raw_value(line, "network");
            facts.unit = raw_value(line, "backup");
        } else if (event == "changing") {
            facts.state = "changing";
            facts.may_be_applied = true;
        } else if (event == "opening") {
            facts.state = "opening";
            facts.may_be_applied = true;
            facts.window = number_value(line, "i", 0);
        } else if (event == "opened") {
            facts.state = "open";
        } else if (event == "closed") {
            facts.state = do_failed ? "failed" : "closed";
            facts.may_be_applied = false;
            facts.window = -1;
        } else if (event == "fired") {
            fired = true;
            facts.state = "fired";
        } else if (event == "failed") {
            do_failed = do_failed || raw_value(line, "phase") == "do" || raw_value(line, "phase") == "later";
        } else if (event == "abandoned") {
            facts.state = event;
        } else if (event == "reverted" || event == "disarmed") {
            facts.state = fired && event == "reverted" ? "fired" : event;
            facts.ended = true;
            facts.may_be_applied = false;
        }
    }
    return facts;
}

}  // namespace genie::warden
