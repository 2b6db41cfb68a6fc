import { LockConfigurationError, LockKeyError } from '../errors/lock.errors.js';
import { normaliseResources } from '../redis/lock-keys.js';
import type { Resource } from '../redis-lock.options.js';

/** A key template, one for each resource, or a function of the method's arguments. */
export type LockKey<Args extends readonly never[] = never[]> =
  string | readonly string[] | ((...args: Args) => Resource);

/** Names the resources of one call, or throws a LockKeyError. */
export type KeyOfCall = (args: readonly unknown[]) => Resource;

interface Placeholder {
  readonly text: string;
  readonly index: number;
  readonly path: readonly string[];
}

/** Finds a parameter by the name, or position, a placeholder has for it, or says why there is none, and what to do. */
export type ParameterOf = (name: string, position: number | undefined) => number | string;

/** Where the method is, for messages. */
export type Described = string;

/**
 * Compiles a key once, when the class is defined.
 *
 * @throws LockConfigurationError for a placeholder that binds to nothing, naming method and placeholder
 */
export function compileKey(key: LockKey, method: Described, parameters: ParameterOf): KeyOfCall {
  if (typeof key === 'function') return (args) => checked(key(...(args as never[])), method);
  const templates: readonly unknown[] = typeof key === 'string' ? [key] : key;
  if (!Array.isArray(templates) || templates.length === 0) {
    throw new LockConfigurationError(`${method}: the key must be a template, several of them, or a function`);
  }
  const compiled = templates.map((template) => compileTemplate(template, method, parameters));
  const [only] = compiled;
  return compiled.length === 1 && only ? only : (args) => compiled.map((resource) => resource(args));
}

/** What a key function answers is a value of this call, and not the developer's word for good. */
function checked(resource: Resource, method: Described): Resource {
  try {
    return normaliseResources(resource);
  } catch (cause) {
    throw new LockKeyError(`${method}: the key function gave no key. ${(cause as Error).message}`, { cause });
  }
}

function compileTemplate(
  template: unknown,
  method: Described,
  parameters: ParameterOf,
): (args: readonly unknown[]) => string {
  if (typeof template !== 'string' || template === '') {
    throw new LockConfigurationError(`${method}: a key template must be a string, not empty`);
  }
  // Text and placeholders in turn: 'order:<id>' is ['order:', 'id', ''].
  const parts = template.split(/<([^<>]*)>/);
  if (parts.some((part, i) => i % 2 === 0 && /[<>{}]/.test(part))) {
    throw new LockConfigurationError(
      `${method}: "${template}" has a '<', '>', '{' or '}' that belongs to no placeholder like <id>`,
    );
  }
  const separators = parts.filter((_part, i) => i % 2 === 0).slice(1, -1);
  if (separators.includes('')) {
    throw new LockConfigurationError(
      `${method}: "${template}" needs something between its placeholders: 'ab', 'c' would be 'a', 'bc'`,
    );
  }
  if (separators.some((separator) => separator.startsWith('%'))) {
    throw new LockConfigurationError(
      `${method}: between placeholders of "${template}", nothing may begin with '%', which stands for encoded characters`,
    );
  }
  const beginnings = new Set(separators.map((separator) => [...separator][0] ?? ''));
  const placeholders = parts.map((part, i) =>
    i % 2 === 1 ? bind(part, template, method, parameters) : undefined,
  );
  const special = [...beginnings].map((each) => `\\u{${each.codePointAt(0)?.toString(16)}}`).join('');
  const encoded = new RegExp(`[\\s:{}<>%\\p{Cc}\\p{Cs}${special}]`, 'gu');
  const fill = (placeholder: Placeholder, args: readonly unknown[]) =>
    valueOf(placeholder, args, template, method).replace(encoded, encode);
  return (args) => parts.map((part, i) => (placeholders[i] ? fill(placeholders[i], args) : part)).join('');
}

function bind(text: string, template: string, method: Described, parameters: ParameterOf): Placeholder {
  const [name = '', ...path] = text.split('.');
  if ([name, ...path].includes('')) {
    throw new LockConfigurationError(`${method}: placeholder <${text}> of "${template}" has an empty name`);
  }
  const position = /^\d+$/.test(name) ? Number(name) : undefined;
  const index = parameters(name, position);
  if (typeof index === 'string') {
    throw new LockConfigurationError(`${method}: placeholder <${text}> of "${template}" ${index}`);
  }
  return { text, index, path };
}

function valueOf(
  placeholder: Placeholder,
  args: readonly unknown[],
  template: string,
  method: Described,
): string {
  let value = args[placeholder.index];
  for (const name of placeholder.path) {
    value = value === null || value === undefined ? undefined : (value as Record<string, unknown>)[name];
  }
  const usable =
    (typeof value === 'string' && value !== '') ||
    (typeof value === 'number' && Number.isFinite(value)) ||
    typeof value === 'bigint' ||
    typeof value === 'boolean';
  if (!usable) {
    const got =
      typeof value === 'object' && value !== null
        ? 'an object'
        : value === ''
          ? 'an empty string'
          : String(value);
    throw new LockKeyError(
      `${method}: <${placeholder.text}> of "${template}" must be a string, number, bigint or boolean; got ${got}`,
    );
  }
  return String(value);
}

/**
 * So that two different lists of values never make the same resource, and none leaves its hash tag: in a value,
 * nothing is left that begins a separator of its template.
 */
function encode(character: string): string {
  const ascii = ENCODED_ASCII[character.codePointAt(0) ?? 0];
  if (ascii !== undefined) return ascii;
  // Half of a surrogate pair has no UTF-8 of its own: unencoded, all of them would look the same to Redis.
  if (/\p{Cs}/u.test(character)) return `%u${character.charCodeAt(0).toString(16)}`;
  return [...Buffer.from(character)].map(percent).join('');
}

function percent(byte: number): string {
  return `%${byte.toString(16).toUpperCase().padStart(2, '0')}`;
}

const ENCODED_ASCII: readonly string[] = Array.from({ length: 128 }, (_, code) => percent(code));
