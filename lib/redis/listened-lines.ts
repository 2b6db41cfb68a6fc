import type { Channel } from './wake-ups.js';

/** What is listened to for each line that somebody of this service waits in; lines of one slot share a channel. */
export class ListenedLines {
  /** By owner key, and then by name: a line may have waiters from before sharded channels were known of. */
  readonly #channels = new Map<string, Map<string, Channel>>();
  /** In how many lines each channel is listened to. */
  readonly #lines = new Map<string, number>();

  add(owner: string, channel: Channel): void {
    const channels = this.#channels.get(owner) ?? new Map<string, Channel>();
    this.#channels.set(owner, channels);
    if (channels.has(channel.name)) return;
    channels.set(channel.name, channel);
    this.#lines.set(channel.name, (this.#lines.get(channel.name) ?? 0) + 1);
  }

  /** @returns what is listened to in no other line */
  delete(owner: string): Channel[] {
    const channels = [...(this.#channels.get(owner)?.values() ?? [])];
    this.#channels.delete(owner);
    return channels.filter(({ name }) => {
      const others = (this.#lines.get(name) ?? 1) - 1;
      if (others > 0) this.#lines.set(name, others);
      else this.#lines.delete(name);
      return others === 0;
    });
  }

  all(): [owner: string, channels: Channel[]][] {
    return [...this.#channels].map(([owner, channels]) => [owner, [...channels.values()]]);
  }
}
