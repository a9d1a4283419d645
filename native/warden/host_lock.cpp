#include "host_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <ctime>

#include "failure.h"

namespace genie::warden {
namespace {

constexpr int kTries = 20;
constexpr Nanos kBetween = 5 * kMillisecond;

struct Holder {
    std::string run;
    Nanos end_real_ns = 0;
};

bool flock_now(const Descriptor& file, int how) {
    if (::flock(file.get(), how | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK) fail_errno("flock the host's lock");
    return false;
}

Holder read_holder(const Descriptor& file) {
    std::array<char, 512> text;
    const ssize_t count = ::pread(file.get(), text.data(), text.size(), 0);
    if (count < 0) fail_errno("read the host's lock");
    const std::string_view line(text.data(), static_cast<std::size_t>(count));
    const auto space = line.find(' ');
    Holder holder;
    if (space == std::string_view::npos) return holder;
    holder.run = line.substr(0, space);
    std::from_chars(line.data() + space + 1, line.data() + line.size(), holder.end_real_ns);
    return holder;
}

void write_holder(const Descriptor& file, const std::string& run, Nanos end_real_ns) {
    // One write of one page: a reader sees the old text or the new. The rest of a longer old one is blanked.
    std::string line = run + " " + std::to_string(end_real_ns) + "\n";
    line.resize(256, '\n');
    if (::pwrite(file.get(), line.data(), line.size(), 0) != static_cast<ssize_t>(line.size()))
        fail_errno("write the host's lock");
}

[[noreturn]] void refuse(const std::string& path, const Holder& holder) {
    if (holder.run.empty()) throw Failure("host is locked: another holds " + path + ", which names no run");
    const time_t end = static_cast<time_t>(holder.end_real_ns / kSecond);
    tm parts{};
    ::gmtime_r(&end, &parts);
    std::array<char, 32> text;
    std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
    throw Failure("host is locked by run " + holder.run + " until " + text.data() + " (" +
                  std::to_string((holder.end_real_ns - real_ns()) / kSecond) + " s): " + path);
}

}  // namespace

Descriptor lock_host(const std::string& path, const std::string& run, Nanos end_real_ns) {
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid()) fail_errno("open the host's lock " + path);
    Holder holder;
    // flock turns an exclusive lock into a shared one by letting go of it first, and a new holder's name
    // appears a moment after its lock: so try a few times before believing what the file says.
    for (int turn = 0; turn < kTries; turn++) {
        if (turn > 0) sleep_for(kBetween);
        if (flock_now(file, LOCK_EX)) {
            write_holder(file, run, end_real_ns);
            if (flock_now(file, LOCK_SH) && read_holder(file).run == run) return file;
            ::flock(file.get(), LOCK_UN);
            continue;
        }
        holder = read_holder(file);
        if (holder.run != run) continue;
        if (!flock_now(file, LOCK_SH)) continue;
        holder = read_holder(file);
        if (holder.run == run) {
            if (end_real_ns > holder.end_real_ns) write_holder(file, run, end_real_ns);
            return file;
        }
        ::flock(file.get(), LOCK_UN);
    }
    refuse(path, holder);
}

void unlock_host(const Descriptor& lock) {
    if (lock.valid()) ::flock(lock.get(), LOCK_UN);
}

}  // namespace genie::warden
