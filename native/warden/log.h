// DIR/log: what happened, a JSON object a line, only ever appended to. It is evidence for the controller, and
// all that a later process needs to know whether the undo must still be run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "clock.h"
#include "descriptor.h"
#include "spec.h"

namespace genie::warden {

// One line. Its first three fields are always mono_ns, real_ns, event, in this order: read_facts() relies on
// it.
class Event {
  public:
    explicit Event(std::string_view name);

    Event& add(std::string_view key, std::int64_t value);
    Event& add(std::string_view key, std::string_view value);
    Event& flag(std::string_view key, bool value);
    Event& add(std::string_view key, const Argv& words);

    std::string line() const { return text_ + "}\n"; }

  private:
    void key(std::string_view name);
    std::string text_;
};

enum class Durable { kNo, kYes };

class Log {
  public:
    // A new log; one that was there becomes log.before.
    static Log create(int folder);
    // The log of an earlier process; a last line cut short is cut off.
    static Log open(int folder);

    // Throws Failure; then nothing of the event is in the log.
    void append(const Event& event, Durable durable);

    std::int64_t size() const { return size_; }

  private:
    Log(Descriptor file, std::int64_t size) : file_(std::move(file)), size_(size) {}
    Descriptor file_;
    std::int64_t size_;
};

// All whole lines of DIR/log; "" if there is none.
std::string read_log(int folder);

// Lines as a JSON array.
std::string log_as_array(std::string_view lines);

struct Facts {
    // "" (none was armed), armed, changing, opening, open, closed, failed, abandoned, reverted, fired,
    // disarmed
    std::string state;
    bool ended = false;
    bool may_be_applied = false;
    std::int64_t window = -1;  // the one that is open or opening
    std::int64_t pid = 0;
    Nanos ttl_end = 0;
    std::string network;  // of the process that was armed: "net:[inode]"
    std::string unit;     // of the systemd timer, if there is one
};

Facts read_facts(std::string_view lines);

}  // namespace genie::warden
